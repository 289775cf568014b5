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

	active  bool // in leased.active; guarded by mu, as are all fields below
	pending bool // queued for a call, or the call is in flight
	evicted bool // another handle may be registered for its key

	mu      sync.Mutex
	shard   *shard   // has the bucket; nil without Redis
	waiters *waiters // requests that wait for Redis, only while pending; nil = none
	lease   lease.Lease
}

// KeyBucket names the bucket of an API key. The braces are a Redis Cluster hash
// tag: all buckets of a request are on one shard.
func KeyBucket(workspace, key string) string { return "{" + workspace + "}:b:" + key }

// WorkspaceBucket names the bucket that all keys of a workspace share.
func WorkspaceBucket(workspace string) string { return "{" + workspace + "}:b" }

// Policy returns the policy that is in force at this node.
func (b *Bucket) Policy() lease.Policy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lease.Policy
}

// reply is what one bucket replies to a request.
type reply struct {
	outcome lease.Outcome
	status  lease.Status
}

// replyOf makes the reply for a lease's outcome. b.mu is held.
func (b *Bucket) replyOf(o lease.Outcome, now int64) reply {
	s := b.lease.Status(now)
	if o == lease.Denied {
		s = lease.Refused(b.lease.RetryIn(now))
	}
	return reply{o, s}
}

// waiters are the requests that wait for a bucket. The bucket's mu guards them.
type waiters struct{ all []chan reply }

// waiting is how many requests wait for the bucket. b.mu is held.
func (b *Bucket) waiting() int64 {
	if b.waiters == nil {
		return 0
	}
	return int64(len(b.waiters.all))
}

// addWaiter adds a request that waits. b.mu is held.
func (b *Bucket) addWaiter(w chan reply) {
	if b.waiters == nil {
		b.waiters = new(waiters)
	}
	b.waiters.all = append(b.waiters.all, w)
}

// leave ends a request's wait. It reports false if the request has been answered.
func (b *Bucket) leave(w chan reply) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting() == 0 {
		return false
	}
	i := slices.Index(b.waiters.all, w)
	if i >= 0 {
		b.waiters.all = slices.Delete(b.waiters.all, i, i+1)
	}
	return i >= 0
}

// everyWaiter lets deliver reply to all waiting requests.
const everyWaiter = true

// deliver replies to the waiting requests that the lease can decide. With all, it also
// replies to the others, with NeedRemote: they are then decided without Redis. b.mu is held.
func (b *Bucket) deliver(now int64, all bool) {
	for b.waiting() > 0 {
		r := b.replyOf(b.lease.Retry(now), now)
		if r.outcome == lease.NeedRemote && !all {
			return
		}
		b.waiters.all[0] <- r
		b.waiters.all = b.waiters.all[1:]
	}
	b.waiters = nil
}

// registry holds one handle for each bucket. With two handles, each would spend the
// node's part of the bucket while Redis is unreachable. The registry evicts a handle
// whose bucket is idle. The handle is registered again when it is used again.
type registry struct {
	evictable  func(b *Bucket, busy bool) bool // see decider
	maxBuckets int

	mu      sync.Mutex // guards all below; taken before a bucket's
	buckets map[string]*Bucket
	sweepAt int // number of buckets at which to evict the idle ones; it keeps the cost of sweeping at O(1) for each new bucket
}

const sweepFrom = 1024

// get returns the key's handle. If there is none, it registers the one that make returns.
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

// lock locks a bucket. If the handle was evicted, lock replaces it with the one that is
// registered for its key.
func (r *registry) lock(b **Bucket) *Bucket {
	all := [2]*Bucket{*b}
	r.lockAll(&all)
	*b = all[0]
	return *b
}

// lockAll is lock for the buckets of a request. Any may be nil. It always locks them in
// this order, so two requests cannot deadlock.
func (r *registry) lockAll(buckets *[2]*Bucket) {
	for {
		evicted := false
		for _, b := range buckets {
			if b != nil {
				b.mu.Lock()
				evicted = evicted || b.evicted
			}
		}
		if !evicted {
			return
		}
		unlock(buckets)
		for i := range buckets {
			buckets[i] = r.registered(buckets[i])
		}
	}
}

func unlock(buckets *[2]*Bucket) {
	for _, b := range buckets {
		if b != nil {
			b.mu.Unlock()
		}
	}
}

// registered returns the handle that is registered for the key of b. If there is none,
// it registers b.
func (r *registry) registered(b *Bucket) *Bucket {
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

// makeRoom evicts buckets if there are many: first the idle ones, and then others until
// there are fewer than maxBuckets. A bucket that is evicted while in use is full when it is
// used again, so it admits at most one burst too many.
func (r *registry) makeRoom() {
	if len(r.buckets) < min(r.sweepAt, r.maxBuckets) {
		return
	}
	for key, b := range r.buckets {
		r.evict(key, b, ifIdle)
	}
	for key, b := range r.buckets {
		if len(r.buckets) < r.maxBuckets-r.maxBuckets/16 {
			break
		}
		r.evict(key, b, evenBusy)
	}
	r.sweepAt = max(sweepFrom, 2*len(r.buckets))
}

// For evict: a bucket that is in use stays, or goes.
const ifIdle, evenBusy = false, true

func (r *registry) evict(key string, b *Bucket, busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.evictable(b, busy) {
		b.evicted = true
		delete(r.buckets, key)
	}
}

func (r *registry) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.buckets)
}
