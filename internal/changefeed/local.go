package changefeed

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Local is the log of a single node without Redis. It is in the memory of the process. It
// has the entries of one epoch: the first append to another one removes those of the old.
type Local struct {
	mu      sync.Mutex // guards the fields below
	epoch   string     // the present one
	of      string     // the epoch of the entries: the present one, or the next
	entries []Entry
	last    Position      // of the newest entry ever appended to it
	grown   chan struct{} // closed and replaced when entries are added
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
func (l *Local) Reader(context.Context) (Reader, error) { return &localReader{log: l}, nil }

type localReader struct {
	log *Local
	err error // of the first read that failed
}

// InstanceID implements Reader.
func (*localReader) InstanceID() string { return "" }

// Close implements Reader.
func (*localReader) Close() error { return nil }

// Read implements Reader.
func (r *localReader) Read(ctx context.Context, epoch string, after Position, wait time.Duration) ([]Entry, bool, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		if r.err != nil {
			return nil, false, r.err
		}
		found, grown := r.log.since(epoch, after)
		if len(found) > 0 {
			return found, false, nil
		}
		select {
		case <-grown:
		case <-timer.C:
			return nil, false, nil
		case <-ctx.Done():
			r.err = ctx.Err()
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
