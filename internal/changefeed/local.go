package changefeed

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Local is the log of a single node without Redis. It is in the memory of the process.
type Local struct {
	mu    sync.Mutex // guards the fields below
	epoch string
	logs  map[string]*localLog // by epoch: the current one and the next
	grown chan struct{}        // closed and replaced when entries are added
}

type localLog struct {
	entries []Entry
	last    Position
}

// of returns the log of an epoch. The caller holds mu.
func (l *Local) of(epoch string) *localLog {
	if l.logs[epoch] == nil {
		l.logs[epoch] = &localLog{}
	}
	return l.logs[epoch]
}

// NewLocal makes an empty log.
func NewLocal() *Local {
	return &Local{logs: map[string]*localLog{}, grown: make(chan struct{})}
}

// Epoch implements Log.
func (l *Local) Epoch(context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch, nil
}

// SetEpoch implements Log. It removes the entries of all other epochs.
func (l *Local) SetEpoch(_ context.Context, from, to string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := CheckTimeline(l.epoch, to); err != nil {
		return err
	}
	if l.epoch != from && l.epoch != to && CheckTimeline(to, l.epoch) == nil {
		return ErrSuperseded
	}
	l.epoch = to
	maps.DeleteFunc(l.logs, func(of string, _ *localLog) bool { return of != to })
	return nil
}

// Append implements Log.
func (l *Local) Append(_ context.Context, epoch string, entries ...Entry) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != "" && l.epoch != epoch && !slices.ContainsFunc(entries, func(e Entry) bool { return e.TermStart != nil }) {
		return ErrSuperseded
	}
	log := l.of(epoch)
	for _, e := range entries {
		if e.Position.Compare(log.last) <= 0 {
			err = ErrFenced
			continue
		}
		log.entries = append(log.entries, e)
		log.last = e.Position
	}
	close(l.grown)
	l.grown = make(chan struct{})
	return err
}

// Last implements Log.
func (l *Local) Last(_ context.Context, epoch string) (Position, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of(epoch).last, nil
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
	entries := l.of(epoch).entries
	i, found := slices.BinarySearchFunc(entries, after, func(e Entry, p Position) int { return e.Position.Compare(p) })
	if found {
		i++
	}
	return slices.Clone(entries[i:]), l.grown
}

// Trim implements Log.
func (l *Local) Trim(_ context.Context, epoch string, before Position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	log := l.of(epoch)
	log.entries = slices.DeleteFunc(log.entries, func(e Entry) bool { return e.Position.Compare(before) < 0 })
	return nil
}
