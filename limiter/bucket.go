package limiter

import (
	"slices"
	"sync"
	"sync/atomic"

	"listedge/limiter/lease"
)

// Bucket is a handle on one bucket: its key, its policy and this node's part of
// it. Keep it with what is limited, and use it from any number of goroutines.
type Bucket struct {
	key     string
	blocked atomic.Bool // its rate is 0

	shard   uint8 // where its calls go; as all below, mu guards it
	tracked bool  // the sweeps look at it
	wanted  bool  // queued for a call, or in flight
	evicted bool  // another handle may have its place

	mu      sync.Mutex
	waiters *waiters // nil where there are none
	lease   lease.Lease
}

// KeyBucket names the bucket of an API key. The braces are a Redis Cluster hash
// tag: the buckets of one request lie on one shard.
func KeyBucket(workspace, key string) string { return "rl:{" + workspace + "}:b:" + key }

// WorkspaceBucket names the bucket that all keys of a workspace share.
func WorkspaceBucket(workspace string) string { return "rl:{" + workspace + "}:b" }

// Policy in force at this node.
func (b *Bucket) Policy() lease.Policy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lease.Policy
}

// answer is what becomes of a request at one bucket.
type answer struct {
	outcome lease.Outcome
	status  lease.Status
}

// answerOf is the answer of a lease's outcome. b.mu is held.
func (b *Bucket) answerOf(o lease.Outcome, now int64) answer {
	s := b.lease.Status(now, false)
	if o == lease.Denied {
		s = s.Refused(b.lease.RetryIn(now))
	}
	return answer{o, s}
}

// waiters are the requests that wait for a bucket, whose mu guards them.
type waiters struct{ all []chan answer }

// waiting is how many requests wait for the bucket. b.mu is held.
func (b *Bucket) waiting() int64 {
	if b.waiters == nil {
		return 0
	}
	return int64(len(b.waiters.all))
}

// leave ends a request's wait. It reports false where it has got its answer.
func (b *Bucket) leave(w chan answer) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters == nil {
		return false
	}
	i := slices.Index(b.waiters.all, w)
	if i < 0 {
		return false
	}
	if b.waiters.all = slices.Delete(b.waiters.all, i, i+1); len(b.waiters.all) == 0 {
		b.waiters = nil
	}
	return true
}

// answer answers those who wait, as far as the lease can; all: the others are to be
// decided without Redis. b.mu is held.
func (b *Bucket) answer(now int64, all bool) {
	for b.waiting() > 0 {
		a := b.answerOf(b.lease.Retry(now), now)
		if a.outcome == lease.NeedRemote && !all {
			return
		}
		b.waiters.all[0] <- a
		b.waiters.all = b.waiters.all[1:]
	}
	b.waiters = nil
}

// registry has one handle to each bucket: two would each take a node's part of it
// while Redis is away. A handle whose bucket is idle is evicted, and is registered
// anew when it is used again.
type registry struct {
	idle func(b *Bucket) bool // with b.mu held: it is as good as a new one
	most int

	mu      sync.Mutex // guards all below; taken before a bucket's
	buckets map[string]*Bucket
	sweepAt int // size at which to evict the idle ones, so that sweeping costs O(1) a new bucket
}

const sweepFrom = 1024

// get returns the handle to the bucket of that key, or registers what make makes.
func (r *registry) get(key string, make func() *Bucket) *Bucket {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.buckets[key]
	if b == nil {
		r.makeRoom()
		b = make()
		r.buckets[key] = b
	}
	return b
}

// lock locks a bucket, or the handle that has its place.
func (r *registry) lock(b *Bucket) *Bucket {
	b, _ = r.lockBoth(b, nil)
	return b
}

// lockBoth is lock for two buckets, in this order always: no two requests wait for
// one another. Either may be nil.
func (r *registry) lockBoth(key, workspace *Bucket) (*Bucket, *Bucket) {
	for {
		evicted := false
		for _, b := range [...]*Bucket{key, workspace} {
			if b != nil {
				b.mu.Lock()
				evicted = evicted || b.evicted
			}
		}
		if !evicted {
			return key, workspace
		}
		unlock(key, workspace)
		key, workspace = r.revive(key), r.revive(workspace)
	}
}

func unlock(buckets ...*Bucket) {
	for _, b := range buckets {
		if b != nil {
			b.mu.Unlock()
		}
	}
}

// revive returns the handle that has the place of b: b itself where there is none.
func (r *registry) revive(b *Bucket) *Bucket {
	if b == nil {
		return nil
	}
	return r.get(b.key, func() *Bucket {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.evicted = false
		return b
	})
}

// makeRoom for another bucket evicts others where there are many: the idle ones,
// and where all are in use, some of these. Those come back full: as in Redis, a
// lost bucket costs at most one burst.
func (r *registry) makeRoom() {
	if len(r.buckets) < min(r.sweepAt, r.most) {
		return
	}
	for key, b := range r.buckets {
		r.evict(key, b, false)
	}
	for key, b := range r.buckets {
		if len(r.buckets) < r.most-r.most/16 {
			break
		}
		r.evict(key, b, true)
	}
	r.sweepAt = max(sweepFrom, 2*len(r.buckets))
}

func (r *registry) evict(key string, b *Bucket, busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if busy || r.idle(b) {
		b.evicted = true
		delete(r.buckets, key)
	}
}

func (r *registry) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.buckets)
}
