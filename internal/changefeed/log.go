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
// # A change is applied: at most 8 files
//
// On every node, after those of a published one:
//
//	internal/changefeed/subscriber.go internal/changefeed/subscription.go cache/following.go
//	cache/replica/replica.go cache/replica/history.go cache/replica/table.go
//	cache/replica/list.go origin/apikey/invalidation.go
package changefeed

import (
	"context"
	"errors"
	"time"
)

// ErrFenced: the log has entries at or above the position.
var ErrFenced = errors.New("position is not above the log's last")

// ErrSuperseded: the present epoch is neither the expected one nor the new one.
var ErrSuperseded = errors.New("another epoch has begun")

// Error is an error of a log that cannot be reached, or refuses an operation.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap is for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }

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
	// Reader opens a reader, which its user closes.
	Reader(ctx context.Context) (Reader, error)
	// Trim removes the entries before the position.
	Trim(ctx context.Context, epoch string, before Position) error
}

// Reader reads logs from one server. After a read that got no answer, all later reads
// fail: a new Reader may be connected to another server, and it is not known when
// that one received its entries. Not safe for use by several goroutines.
type Reader interface {
	// Read returns the entries after the position, oldest first. It waits up to wait
	// for the first; none is no error. An entry that cannot be decoded is Undecodable
	// and has its position, so that the reader can continue after it. cut says that
	// the log may have had more of them.
	Read(ctx context.Context, epoch string, after Position, wait time.Duration) (entries []Entry, cut bool, err error)
	// InstanceID names the server that answers, and its run; empty = there is one only.
	InstanceID() string
	Close() error
}
