package limiter

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"listedge/limiter/lease"
)

// Bucket is a handle on one bucket: its key, its policy and this node's part of
// it. Keep it with what is limited, and use it from any number of goroutines.
type Bucket struct {
	key     string
	blocked atomic.Bool // its rate is 0

	active  bool // in Limiter.active; guarded by mu, as are all fields below
	pending bool // queued for a call, or the call is in flight

	mu      sync.Mutex
	shard   *shard       // has the bucket; nil without Redis
	waiters []chan reply // requests that wait for Redis, only while pending
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

// leave ends a request's wait, and takes a reply that came at the same moment.
func (b *Bucket) leave(p *part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiters, p.replies); i >= 0 {
		b.waiters = slices.Delete(b.waiters, i, i+1)
	} else {
		p.reply = <-p.replies
	}
}

// everyWaiter lets deliver reply to all waiting requests.
const everyWaiter = true

// deliver replies to the waiting requests that the lease can decide. With all, it also
// replies to the others, with NeedRemote: they are then decided without Redis. b.mu is held.
func (b *Bucket) deliver(now int64, all bool) {
	for len(b.waiters) > 0 {
		r := b.replyOf(b.lease.Retry(now), now)
		if r.outcome == lease.NeedRemote && !all {
			return
		}
		b.waiters[0] <- r
		b.waiters = b.waiters[1:]
	}
	b.waiters = nil
}

// registry has the handle of each bucket that anybody uses. With two handles, each would
// spend the node's part of the bucket while Redis is unreachable. The pointers are weak: a handle
// that nobody keeps, and that is not active and has no call, is freed, because a new one would
// be the same.
type registry struct {
	mu      sync.Mutex // guards all below; taken before a bucket's
	buckets map[string]weak.Pointer[Bucket]
	sweepAt int // number of buckets at which to forget those that nobody uses; it keeps the cost of sweeping at O(1) for each new bucket
}

const sweepFrom = 1024

// get returns the key's handle. If there is none, it registers the one that make returns.
func (r *registry) get(key string, make func() *Bucket) *Bucket {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.buckets[key].Value()
	if b == nil {
		if len(r.buckets) >= r.sweepAt {
			maps.DeleteFunc(r.buckets, func(_ string, b weak.Pointer[Bucket]) bool { return b.Value() == nil })
			r.sweepAt = max(sweepFrom, 2*len(r.buckets))
		}
		b = make()
		r.buckets[key] = weak.Make(b)
	}
	return b
}
