package stream

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Local is the log of a single node, in its process.
type Local struct {
	mu      sync.Mutex // guards all below
	epoch   string
	of      string // the epoch the entries belong to
	entries []Entry
	last    Position
	probes  map[string]uint64
	grown   chan struct{} // closed when an entry is added
}

// NewLocal makes an empty log.
func NewLocal() *Local {
	return &Local{probes: map[string]uint64{}, grown: make(chan struct{})}
}

// Epoch implements Log, as all methods do; none of them fails but by ctx.
func (l *Local) Epoch(context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch, nil
}

// SetEpoch implements Log.
func (l *Local) SetEpoch(_ context.Context, epoch string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch = epoch
	return nil
}

// Append implements Log.
func (l *Local) Append(_ context.Context, epoch string, e Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnTo(epoch)
	if e.Position.Compare(l.last) <= 0 {
		return ErrFenced
	}
	l.entries = append(l.entries, e)
	l.last = e.Position
	close(l.grown)
	l.grown = make(chan struct{})
	return nil
}

// turnTo forgets the entries of another epoch.
func (l *Local) turnTo(epoch string) {
	if l.of != epoch {
		l.of, l.entries, l.last = epoch, nil, Position{}
	}
}

// Last implements Log.
func (l *Local) Last(_ context.Context, epoch string) (Position, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of != epoch {
		return Position{}, nil
	}
	return l.last, nil
}

// Read implements Log.
func (l *Local) Read(ctx context.Context, epoch string, after Position, wait time.Duration) ([]Entry, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		found, grown := l.since(epoch, after)
		if len(found) > 0 {
			return found, nil
		}
		select {
		case <-grown:
		case <-timer.C:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *Local) since(epoch string, after Position) ([]Entry, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of != epoch {
		return nil, l.grown
	}
	i, _ := slices.BinarySearchFunc(l.entries, after, func(e Entry, p Position) int {
		if e.Position.Compare(p) <= 0 {
			return -1
		}
		return 1
	})
	return slices.Clone(l.entries[i:]), l.grown
}

// Trim implements Log.
func (l *Local) Trim(_ context.Context, epoch string, before Position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == epoch {
		l.entries = slices.DeleteFunc(l.entries, func(e Entry) bool { return e.Position.Compare(before) < 0 })
	}
	return nil
}

// Probe implements Log.
func (l *Local) Probe(_ context.Context, node string, nonce uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probes[node] = nonce
	return nil
}

// Probes implements Log.
func (l *Local) Probes(context.Context) (map[string]uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.probes), nil
}
