package limiter

import (
	"time"

	"listedge/limiter/lease"
)

// What tests ask about, or do, that nobody else may.

// What a node sends to Redis.
var Pack, TokenBucketText, QuotaText, HeartbeatText = pack, tokenBucketText, quotaText, heartbeatText

// Fleet returns what a node knows of the nodes that share a key's shard.
func (l *Limiter) Fleet(key string) *lease.Fleet { return l.shardOf(key).fleet() }

// Buckets returns how many buckets the limiter remembers.
func (l *Limiter) Buckets() int { return len(l.buckets.all) }

// Waits reports whether a request of this moment has to ask Redis.
func (b *Bucket) Waits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.shard.l.now()
	return b.lease.Holds(now) == 0 && !b.lease.Denies(now)
}

// Calls reports whether a call is under way.
func (b *Bucket) Calls() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending
}

// Refund gives a token back.
func (b *Bucket) Refund() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refund(b.shard.l.now(), false)
}

// Key returns the bucket's name.
func (b *Bucket) Key() string { return b.key }

// Prolong makes the period end later, as if the clock had been set back.
func (q *Counter) Prolong(by time.Duration) {
	q.l.quotas.mu.Lock()
	defer q.l.quotas.mu.Unlock()
	q.until += by.Microseconds()
}
