package changefeed

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Local is the log of a single node, in its process.
type Local struct {
	probeLife time.Duration

	mu     sync.Mutex // guards all below
	epoch  string
	logs   map[string]*localLog // by epoch: the present one and what is about to be it
	probes map[string]localProbe
	grown  chan struct{} // closed when an entry is added
}

type localLog struct {
	entries []Entry
	last    Position
}

type localProbe struct {
	nonce uint64
	at    time.Time
}

// NewLocal makes an empty log.
func NewLocal() *Local {
	return &Local{probeLife: probeLife, logs: map[string]*localLog{}, probes: map[string]localProbe{}, grown: make(chan struct{})}
}

// Epoch implements Log, as all methods do; none of them fails but by ctx.
func (l *Local) Epoch(context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch, nil
}

// SetEpoch implements Log. The entries of all other epochs are forgotten.
func (l *Local) SetEpoch(_ context.Context, from, to string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := CheckTimeline(l.epoch, to); err != nil {
		return err
	}
	if l.epoch != from && l.epoch != to && compareTimelines(to, l.epoch) <= 0 {
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
	log := l.logs[epoch]
	if log == nil {
		log = &localLog{}
		l.logs[epoch] = log
	}
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
	if log := l.logs[epoch]; log != nil {
		return log.last, nil
	}
	return Position{}, nil
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
	log := l.logs[epoch]
	if log == nil {
		return nil, l.grown
	}
	i, found := slices.BinarySearchFunc(log.entries, after, func(e Entry, p Position) int { return e.Position.Compare(p) })
	if found {
		i++
	}
	return slices.Clone(log.entries[i:]), l.grown
}

// Trim implements Log.
func (l *Local) Trim(_ context.Context, epoch string, before Position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if log := l.logs[epoch]; log != nil {
		log.entries = slices.DeleteFunc(log.entries, func(e Entry) bool { return e.Position.Compare(before) < 0 })
	}
	return nil
}

// Probe implements Log.
func (l *Local) Probe(_ context.Context, node string, nonce uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probes[node] = localProbe{nonce, time.Now()}
	return nil
}

// Probes implements Log.
func (l *Local) Probes(context.Context) (map[string]uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var latest time.Time
	for _, p := range l.probes {
		if p.at.After(latest) {
			latest = p.at
		}
	}
	nonces := make(map[string]uint64, len(l.probes))
	for node, p := range l.probes {
		if latest.Sub(p.at) > l.probeLife {
			delete(l.probes, node)
			continue
		}
		nonces[node] = p.nonce
	}
	return nonces, nil
}
