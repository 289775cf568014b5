package limiter

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// activeBuckets are those that hold leased tokens or have a debt. While there are any,
// they are swept every sweepEvery; less often where that takes more than a fiftieth of the time.
type activeBuckets struct {
	l *Limiter

	mu       sync.Mutex // guards all below; taken after a bucket's
	buckets  map[*Bucket]struct{}
	sweeping bool // a sweep runs, or a timer will begin one
}

const (
	sweepEvery = 100 * time.Millisecond
	maxSwept   = 64 // calls that a sweep requests at most, so that they do not delay requests
)

// add adds a bucket. b.mu is held.
func (a *activeBuckets) add(b *Bucket) {
	if b.active {
		return
	}
	b.active = true
	a.mu.Lock()
	defer a.mu.Unlock()
	a.buckets[b] = struct{}{} // mutation: a bucket in use is forgotten
	if !a.sweeping {
		a.sweeping = true
		time.AfterFunc(sweepEvery, a.sweep)
	}
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

// sweep gives back what is idle and sends debts. Then it removes the buckets that hold
// nothing and have no debt.
func (a *activeBuckets) sweep() {
	if a.l.closed.Load() {
		return
	}
	now, calls, began := a.l.now(), 0, time.Now()
	a.each(func(b *Bucket) {
		if b.lease.Sweep(now, b.shard.fleet()) && calls < maxSwept && a.l.requestCall(b) {
			calls++
		}
		if b.active = b.lease.IsActive(); !b.active {
			a.mu.Lock()
			delete(a.buckets, b)
			a.mu.Unlock()
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sweeping = len(a.buckets) > 0; a.sweeping {
		time.AfterFunc(max(sweepEvery, 50*time.Since(began)), a.sweep)
	} else {
		a.buckets = make(map[*Bucket]struct{}) // the old one keeps its memory
	}
}
