// Package changefeed is the log of changes that keeps the caches of a fleet
// equal to the database: one node, the follower, writes what Postgres commits,
// and all nodes read it in one order.
//
//	Postgres ── slot ──► follower ── Append ──► log of an epoch ──► Reader of every node
//	                                                                       │
//	     pages, API keys ◄── Listener ◄── Subscription ◄── Subscriber ◄────┘
//
// An entry's position is <term>-<n>. A term begins when a node takes over the slot; n
// counts 1, 2, 3 … without gaps. A log refuses a position that is not above its last:
// this fences a follower that has lost its slot and does not know. A new epoch is a
// new log: nothing of the old one is valid any more.
//
// # A change is applied: at most 4 files
//
// On every node, after those of a published one:
//
//	internal/changefeed/subscription.go cache/replica/replica.go cache/replica/list.go cache/replica/changes.go
package changefeed

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrFenced: the log has entries at or above the position.
var ErrFenced = errors.New("position is not above the log's last")

// ErrSuperseded: the present epoch is neither the expected one nor the new one.
var ErrSuperseded = errors.New("another epoch has begun")

// Error is an error of a log that cannot be reached, or refuses an operation.
type Error struct{ error }

// Unwrap is for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.error }

// Log stores entries: in Redis for a fleet, in process for a single node.
// Implementations pass one suite.
type Log interface {
	// Epoch names the present epoch; empty when there is none.
	Epoch(ctx context.Context) (string, error)
	// SetEpoch replaces the epoch that was read before (empty: there was none, or it
	// was lost). If to is the present one already, nothing is done.
	// Errors: ErrSuperseded; after any other it is not known whether it was done, and
	// it may be tried again.
	SetEpoch(ctx context.Context, from, to string) error
	// Append adds entries, in ascending order, without entries of others between them.
	// Errors: ErrFenced, if one was refused; ErrSuperseded, if another epoch is
	// present and none of them starts a term. After any other error it is not known
	// how many were added: those up to Last are, if they are of its term.
	Append(ctx context.Context, epoch string, entries ...Entry) error
	// Last is the position of the newest entry ever appended.
	Last(ctx context.Context, epoch string) (Position, error)
	// Reader opens a reader, which its user closes. server names the server that answers it,
	// and that server's run; empty = there is one only.
	Reader(ctx context.Context) (r Reader, server string, err error)
	// Trim removes the entries before the position.
	Trim(ctx context.Context, epoch string, before Position) error
	// Checkpoint returns what was last stored of the epoch; nil = nothing, or nothing that this version can read.
	Checkpoint(ctx context.Context, epoch string) (*Checkpoint, error)
	// SetCheckpoint stores a checkpoint. It is lost some time after the epoch's last entry.
	SetCheckpoint(ctx context.Context, c *Checkpoint) error
	// Hurry asks who appends for heartbeats: somebody waits for a proof. It may be lost.
	Hurry(ctx context.Context)
	// Hurried reports whether somebody had asked when entries were last appended, once.
	Hurried() bool
}

// Reader reads logs from one server. It must not be used after an error: it may then be
// connected to another server, and it is not known when that one received its entries. Not
// safe for use by several goroutines.
type Reader interface {
	// Read returns the entries after the position, oldest first. It waits up to wait
	// for the first; none is no error. An entry that cannot be decoded is Undecodable
	// and has its position, so that the reader can continue after it. cut says that
	// the log may have had more of them.
	Read(ctx context.Context, epoch string, after Position, wait time.Duration) (entries []Entry, cut bool, err error)
	Close() error
}

// Local is the log of a single node without Redis. It is in the memory of the process. It
// has the entries of one epoch: the first append to another one removes those of the old.
type Local struct {
	mu      sync.Mutex // guards the fields below
	epoch   string     // the present one
	of      string     // the epoch of the entries: the present one, or the next
	entries []Entry
	last    Position      // of the newest entry ever appended to it
	grown   chan struct{} // closed and replaced when entries are added

	checkpoint *Checkpoint // the last one; nil = none

	hurried atomic.Bool // asked for, and not reported
}

// NewLocal makes an empty log.
func NewLocal() *Local { return &Local{grown: make(chan struct{})} }

// Epoch implements Log.
func (l *Local) Epoch(context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch, nil
}

// SetEpoch implements Log.
func (l *Local) SetEpoch(_ context.Context, from, to string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != from && l.epoch != to {
		return ErrSuperseded
	}
	l.epoch = to
	return nil
}

// Append implements Log.
func (l *Local) Append(_ context.Context, epoch string, entries ...Entry) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != "" && l.epoch != epoch && !slices.ContainsFunc(entries, func(e Entry) bool { return e.TermStart != nil }) {
		return ErrSuperseded
	}
	if epoch != l.of {
		l.of, l.entries, l.last = epoch, nil, Position{}
	}
	for _, e := range entries {
		if e.Position.Compare(l.last) <= 0 {
			err = ErrFenced
			continue
		}
		l.entries, l.last = append(l.entries, e), e.Position
	}
	close(l.grown)
	l.grown = make(chan struct{})
	return err
}

// Last implements Log.
func (l *Local) Last(_ context.Context, epoch string) (last Position, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if epoch == l.of {
		last = l.last
	}
	return last, nil
}

// Reader implements Log.
func (l *Local) Reader(context.Context) (Reader, string, error) { return l, "", nil }

// Close implements Reader.
func (*Local) Close() error { return nil }

// Read implements Reader.
func (l *Local) Read(ctx context.Context, epoch string, after Position, wait time.Duration) ([]Entry, bool, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		found, grown := l.since(epoch, after)
		if len(found) > 0 {
			return found, false, nil
		}
		select {
		case <-grown:
		case <-timer.C:
			return nil, false, nil
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// since returns the epoch's entries behind a position, and the channel that is closed
// when entries are added.
func (l *Local) since(epoch string, after Position) ([]Entry, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if epoch != l.of {
		return nil, l.grown
	}
	i, found := slices.BinarySearchFunc(l.entries, after, func(e Entry, p Position) int { return e.Position.Compare(p) })
	if found {
		i++
	}
	return slices.Clone(l.entries[i:]), l.grown
}

// Trim implements Log.
func (l *Local) Trim(_ context.Context, epoch string, before Position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if epoch == l.of {
		l.entries = slices.DeleteFunc(l.entries, func(e Entry) bool { return e.Position.Compare(before) < 0 })
	}
	return nil
}

// Checkpoint implements Log.
func (l *Local) Checkpoint(_ context.Context, epoch string) (c *Checkpoint, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.checkpoint != nil && l.checkpoint.Epoch == epoch {
		c = l.checkpoint
	}
	return c, nil
}

// SetCheckpoint implements Log.
func (l *Local) SetCheckpoint(_ context.Context, c *Checkpoint) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checkpoint = c
	return nil
}

// Hurry implements Log.
func (l *Local) Hurry(context.Context) { l.hurried.Store(true) }

// Hurried implements Log.
func (l *Local) Hurried() bool { return l.hurried.Swap(false) }
