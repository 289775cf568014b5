package limiter

import (
	"sync"
	"sync/atomic"
)

// Bucket is a handle on one bucket: its key, its policy and what this node
// knows of it. Make one per API key or workspace, keep it, and use it from any
// number of goroutines. Two handles on one key share the bucket, but while
// Redis is away each counts for itself.
type Bucket struct {
	key    string
	policy atomic.Pointer[Policy]
	listed atomic.Bool // in Limiter.owing

	mu sync.Mutex // guards all below
	// seen is the bucket as Redis last showed it, ts in this node's time;
	// seenAt is Redis' own time of it, which orders answers that overtook
	// one another. seenAt 0 = never seen.
	seen   state
	seenAt int64
	local  *local // not nil while tokens were spent here that Redis knows nothing of
	// settling is not nil while a debt is on its way, and closed when it has
	// arrived or failed: until then Redis shows tokens that are spent, and no
	// other visit may ask for them.
	settling chan struct{}
}

// local is the bucket while Redis cannot be asked. Both states start from the
// last level seen and refill alike; only spent pays. Their difference is what
// Redis must be told. It shrinks where unspent is full and spent catches up,
// as it would have in Redis: after an outage of an hour a bucket does not owe
// the hour's requests, only what is missing from it now.
//
// Invariant: spent.level <= unspent.level, same policy.
type local struct{ spent, unspent state }

// KeyBucket names the bucket of an API key. The braces are a Redis Cluster hash
// tag: the buckets of one request lie on one shard.
func KeyBucket(workspace, key string) string { return "rl:{" + workspace + "}:k:" + key }

// WorkspaceBucket names the bucket that all keys of a workspace share.
func WorkspaceBucket(workspace string) string { return "rl:{" + workspace + "}:w" }

// Policy in force at this node.
func (b *Bucket) Policy() Policy { return *b.policy.Load() }

// SetPolicy puts another policy in force from the next Take on. The bucket
// keeps its filled share.
func (b *Bucket) SetPolicy(p Policy) { b.policy.Store(&p) }

// note remembers what Redis answered; now is this node's time of the answer,
// which is later than Redis' and so refills less.
func (b *Bucket) note(c *call, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.now < b.seenAt && b.seenAt-c.now <= clockSlack {
		return // an older answer, overtaken on its way
	}
	level := c.level
	if c.version != c.policy.Version { // counted in units of a policy not known here
		level = min(c.policy.units(), c.remaining*c.policy.p)
	}
	b.seen, b.seenAt = state{level: level, ts: now, policy: c.policy}, c.now
}

// away returns the local bucket, started from the last level seen. A bucket
// never seen is full, as an absent one is in Redis. Call with b.mu held.
func (b *Bucket) away(p Policy, now int64) *local {
	if b.local == nil {
		start := fullState(p, now)
		if b.seenAt != 0 {
			start = b.seen
		}
		b.local = &local{spent: start, unspent: start}
	}
	b.local.advance(p, now)
	return b.local
}

// debt is local spending that Redis must be told of.
type debt struct {
	tokens int64
	policy Policy // they were spent under
}

// advance refills both states up to now and puts p in force in both. Versions
// do not matter here: a node's own policy is the one it goes by alone.
func (l *local) advance(p Policy, now int64) {
	for _, s := range []*state{&l.spent, &l.unspent} {
		s.refill(now)
		if !s.policy.sameLimits(p) {
			s.rescale(p)
		}
		s.policy = p
	}
}

// visitLocal carries out c on the local bucket.
func (b *Bucket) visitLocal(c *call, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away(c.policy, now).spent.visit(c, now)
	// A token that Redis handed out may come back here: it is spent here
	// rather than owed by Redis.
	b.local.unspent.level = max(b.local.unspent.level, b.local.spent.level)
}

// owes reports whether Redis has yet to hear of a token spent here: one that
// comes back then need not travel.
func (b *Bucket) owes() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.local != nil && b.local.unspent.level-b.local.spent.level >= b.local.spent.policy.p
}

// claim returns the tokens that Redis must debit and the policy they were spent
// under. Rounded up, at most one burst. Where there are any, the caller owes a
// settled or an unclaim. Where another debt is on its way, busy says when to
// try again.
func (b *Bucket) claim(now int64) (d debt, busy <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.settling != nil {
		return debt{}, b.settling
	}
	if b.local == nil {
		return debt{}, nil
	}
	l := b.local
	d.policy = l.spent.policy
	l.advance(d.policy, now)
	d.tokens = ceilDiv(l.unspent.level-l.spent.level, d.policy.p)
	l.unspent = l.spent
	if d.tokens > 0 {
		b.settling = make(chan struct{})
	}
	return d, nil
}

// unclaim takes back a debt that Redis did not confirm. (It may have debited
// all the same: then it is debited twice, which never admits too much.)
func (b *Bucket) unclaim(d debt, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away(d.policy, now).unspent.giveBack(d.tokens)
	b.arrived()
}

// settled notes that Redis has debited d, and ends the local bucket once nothing
// more is owed: the next one starts from what Redis has shown since.
func (b *Bucket) settled(d debt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.tokens > 0 {
		b.arrived()
	}
	if b.local != nil && b.settling == nil && b.local.spent == b.local.unspent {
		b.local = nil
	}
}

// settledLate notes that Redis has debited d after it was taken back.
func (b *Bucket) settledLate(d debt, now int64) {
	if d.tokens == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.local == nil {
		return // another visit has paid as well: lost
	}
	b.local.advance(d.policy, now)
	b.local.unspent.debit(d.tokens)
	b.local.unspent.level = max(b.local.unspent.level, b.local.spent.level)
}

func (b *Bucket) arrived() {
	close(b.settling)
	b.settling = nil
}
