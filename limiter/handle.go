package limiter

import (
	"sync"
	"sync/atomic"
)

// Bucket is a handle on one bucket: its key, its policy and this node's lease.
// Make one per API key or workspace, keep it, and use it from any number of
// goroutines. Two handles on one key share the bucket as two nodes do.
type Bucket struct {
	key    string
	policy atomic.Pointer[Policy]
	home   atomic.Pointer[dispatcher] // of the Redis node that has the bucket; nil = to be found out
	owner  *Limiter
	stripe *stripe
	listed atomic.Bool // in the active list of its home
	lease  lease

	visiting sync.Mutex // in process: guards own
	own      [1]call
}

// KeyBucket names the bucket of an API key. The braces are a Redis Cluster hash
// tag: the buckets of one request lie on one shard.
func KeyBucket(workspace, key string) string { return "rl:{" + workspace + "}:k:" + key }

// WorkspaceBucket names the bucket that all keys of a workspace share.
func WorkspaceBucket(workspace string) string { return "rl:{" + workspace + "}:w" }

// Policy in force at this node.
func (b *Bucket) Policy() Policy { return *b.policy.Load() }

// SetPolicy puts another policy in force from the next Take on: what the node
// holds goes back under the old one first. The bucket keeps its filled share.
func (b *Bucket) SetPolicy(p Policy) {
	b.policy.Store(&p)
	b.lease.shut()
	b.owner.want(b)
}

// level is how the bucket stands: what it was last seen to have, what the rate
// has brought since, and what this node holds of it.
func (b *Bucket) level(p *Policy, now int64) Level {
	units := min(p.units(), b.lease.view.levelNow(*p, now)+b.lease.holds(now)*p.p)
	return Level{Remaining: units / p.p, Full: micros(ceilDiv(p.units()-units, p.r))}
}
