package limiter

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// activeBuckets are those that hold leased tokens or have a debt. While there are any, a
// timer has them swept every sweepEvery.
type activeBuckets struct {
	mu      sync.Mutex // guards all below; taken after a bucket's
	buckets map[*Bucket]struct{}
	timer   *time.Timer
	stopped bool
}

const sweepEvery = 100 * time.Millisecond

func newActiveBuckets(sweep func()) *activeBuckets {
	a := &activeBuckets{buckets: make(map[*Bucket]struct{}), timer: time.AfterFunc(time.Hour, sweep)}
	a.timer.Stop()
	return a
}

// add adds a bucket. b.mu is held.
func (a *activeBuckets) add(b *Bucket) {
	if b.active {
		return
	}
	b.active = true
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.buckets) == 0 && !a.stopped {
		a.timer.Reset(sweepEvery)
	}
	a.buckets[b] = struct{}{}
}

// each calls do for each bucket, with b.mu held.
func (a *activeBuckets) each(do func(b *Bucket)) {
	a.mu.Lock()
	all := slices.Collect(maps.Keys(a.buckets))
	a.mu.Unlock()
	for _, b := range all {
		b.mu.Lock()
		do(b)
		b.mu.Unlock()
	}
}

// sweep calls do for each bucket, with b.mu held, and removes those that hold nothing and
// owe nothing.
func (a *activeBuckets) sweep(do func(b *Bucket)) {
	a.each(func(b *Bucket) {
		do(b)
		if b.active = b.lease.IsActive(); !b.active {
			a.mu.Lock()
			delete(a.buckets, b)
			a.mu.Unlock()
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case len(a.buckets) == 0:
		a.buckets = make(map[*Bucket]struct{}) // frees the memory of the old one
	case !a.stopped:
		a.timer.Reset(sweepEvery)
	}
}

// stop ends the sweeps.
func (a *activeBuckets) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	a.timer.Stop()
}
