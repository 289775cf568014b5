package limiter

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"listedge/prefetch"
)

// Bucket is a handle on one bucket: its key, its policy and this node's lease.
// Keep it with what is limited, and use it from any number of goroutines.
//
// What every request needs comes first, and fills one cache line.
type Bucket struct {
	policy  atomic.Pointer[Policy]
	cell    atomic.Pointer[cell] // in process: where it lay when it was last visited; nil = not yet
	owner   *Limiter
	blocked atomic.Bool // its rate is 0
	stripe  uint8       // of the tally
	lease   lease

	key    string
	home   atomic.Pointer[dispatcher] // of the Redis node that has the bucket; nil = to be found out
	listed atomic.Bool                // in the active list of its home

	visiting sync.Mutex // in process: held during a flight
}

// Bucket returns the handle on the bucket of that key, under policy p: see
// KeyBucket and WorkspaceBucket for the keys. As long as it is used, or holds or
// owes tokens, it is the same one: a second lease would take a second part of
// the bucket while Redis is away.
func (l *Limiter) Bucket(key string, p Policy) *Bucket {
	for {
		found, there := l.handles.Load(key)
		if !there {
			b := l.newBucket(key, p)
			mine := weak.Make(b)
			if _, there = l.handles.LoadOrStore(key, mine); there {
				continue
			}
			runtime.AddCleanup(b, func(l *Limiter) {
				l.handles.CompareAndDelete(key, mine)
				if l.local != nil {
					l.local.leave(key)
				}
			}, l)
			return b
		}
		if b := found.(weak.Pointer[Bucket]).Value(); b != nil {
			if b.Policy() != p {
				b.SetPolicy(p)
			}
			return b
		}
		l.handles.CompareAndDelete(key, found) // nobody uses it any more
	}
}

func (l *Limiter) newBucket(key string, p Policy) *Bucket {
	b := &Bucket{key: key, owner: l, stripe: l.tally.stripe()}
	b.put(&p)
	b.lease.policy, b.lease.demand = p, demand{at: l.now()}
	if l.local == nil {
		b.lease.life, b.lease.link = leaseLife, &l.link
	}
	if l.cluster == nil {
		b.home.Store(l.router)
	}
	return b
}

// KeyBucket names the bucket of an API key. The braces are a Redis Cluster hash
// tag: the buckets of one request lie on one shard.
func KeyBucket(workspace, key string) string { return "rl:{" + workspace + "}:k:" + key }

// WorkspaceBucket names the bucket that all keys of a workspace share.
func WorkspaceBucket(workspace string) string { return "rl:{" + workspace + "}:w" }

// sharesShardWith reports whether a Cluster keeps both on one node.
func (b *Bucket) sharesShardWith(c *Bucket) bool {
	return b.owner.cluster == nil || hashTag(b.key) == hashTag(c.key)
}

// Policy in force at this node.
func (b *Bucket) Policy() Policy { return *b.policy.Load() }

// SetPolicy puts another policy in force from the next TakeAt on: what the node
// holds goes back under the old one first. The bucket keeps its filled share.
func (b *Bucket) SetPolicy(p Policy) {
	b.put(&p)
	b.lease.shut()
	b.owner.want(b)
}

// Prefetch has fetched what a decision reads of the handle.
func (b *Bucket) Prefetch() {
	prefetch.Memory(unsafe.Pointer(b), unsafe.Offsetof(b.lease)+unsafe.Offsetof(b.lease.mu))
}

// Place is where what a decision reads beyond the handle lies, for who
// prefetches it; 0 = nowhere.
func (b *Bucket) Place() uintptr { return uintptr(unsafe.Pointer(b.cell.Load())) }

func (b *Bucket) put(p *Policy) {
	b.policy.Store(p)
	b.blocked.Store(p.r == 0)
}
