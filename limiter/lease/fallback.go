package lease

import "math"

// Fleet is what a node knows of its fleet at a moment.
type Fleet struct {
	Nodes   int64 // that share the buckets
	Missing int64 // of them, those that have sent no heartbeat lately
	Node    int64 // this one
	Contact int64 // when its last heartbeat was sent that may have said that it is present
	Cold    bool  // it has not counted the others yet
	Link    *Link // its way to Redis
}

// fallback is a node's part of a bucket while Redis cannot be asked: it starts
// from its part of the level last seen, and its part of the rate refills it once
// the other nodes hold that back. So all parts together admit what the bucket
// would have, and a burst more at most.
//
// unspent is the level without what was spent here. The difference is what the
// bucket must debit. It shrinks where unspent is full and level catches up: after
// an outage of an hour a bucket does not owe the hour's requests, only what is
// missing from it now.
//
// It outlives short returns of Redis, so that many short outages admit no more than
// one long outage. What is seen of the bucket in between can only lower it.
//
// Invariant: 0 <= level <= unspent <= its part of a full bucket.
type fallback struct {
	level, unspent int64 // micro-tokens
	at             int64 // up to here both are refilled
	seen           int64 // when the bucket's level was seen that bounds them
}

// parts is into how many parts the bucket is divided, of which one is this node's; 0:
// it has none. A burst smaller than the fleet belongs to the node that owns the
// bucket. A node that cannot know the owner has its part of the rate and a token.
func (l *Lease) parts(f *Fleet) int64 {
	switch {
	case l.Policy.Burst >= f.Nodes || f.Cold || l.At == never:
		return max(1, f.Nodes)
	case l.owner && f.Contact-l.At <= OwnerLife*2/3:
		return 1
	}
	return 0
}

// TakeFallback decides a request without Redis, or returns how long there is no token.
// admit: it is admitted, even if there is none.
func (l *Lease) TakeFallback(now int64, f *Fleet, admit bool) (ok bool, wait int64) {
	parts := l.parts(f)
	if parts == 0 && !admit {
		return false, MissingAfter
	}
	a := l.refillFallback(now, f, max(1, parts))
	if a.level < Token && !admit {
		return false, int64(math.Ceil(float64(Token-a.level) * 1e6 * float64(parts) / float64(max(1, l.Policy.Rate))))
	}
	a.level = max(0, a.level-Token)
	return true, 0
}

// refillFallback brings the fallback bucket, one of so many parts, to now.
func (l *Lease) refillFallback(now int64, f *Fleet, parts int64) *fallback {
	p := &l.Policy
	full := max(Token, p.Units()/parts)
	switch {
	case f.Nodes == 1: // no other spends this node's part, but a call in flight may
		if l.inFlight && l.At != never {
			now = min(now, l.At)
		}
	case now > f.Contact: // until the others withhold this node's part, they spend it
		now = max(f.Contact, now-MissingAfter)
	}
	a := l.fallback
	if a == nil {
		a = &fallback{level: full, unspent: full, at: now, seen: never}
		if l.At == never && p.Burst < f.Nodes && !f.Cold {
			a.level, a.unspent = 0, 0
		}
		l.fallback = a
	}
	if now > a.at {
		earned := int64(min(float64(full), math.Floor(float64(now-a.at)*float64(p.Rate)/1e6/float64(parts))))
		a.level, a.unspent, a.at = min(full, a.level+earned), min(full, a.unspent+earned), now
	}
	if l.At > a.seen {
		a.seen = l.At
		excess := max(0, a.level-max(0, l.levelAt(now))/parts)
		a.level -= excess
		a.unspent -= excess
	}
	return a
}

// refundFallback takes a token back that was spent here, and reports whether one was.
func (l *Lease) refundFallback() bool {
	if l.fallback == nil || l.fallback.unspent-l.fallback.level < Token {
		return false
	}
	l.fallback.level += Token
	return true
}

// HasDebt reports whether the bucket does not know yet of tokens spent here.
func (l *Lease) HasDebt() bool { return l.fallback != nil && l.fallback.unspent > l.fallback.level }

// takeDebt returns the tokens that the bucket must debit, rounded up.
func (l *Lease) takeDebt() int64 {
	if !l.HasDebt() {
		return 0
	}
	tokens := (l.fallback.unspent - l.fallback.level + Token - 1) / Token
	l.fallback.unspent = l.fallback.level
	return tokens
}

// restoreDebt takes back a debt that was not confirmed. (It may have been debited all
// the same: then it is debited twice, which never admits too much.)
func (l *Lease) restoreDebt(tokens int64) {
	if tokens > 0 && l.fallback != nil {
		l.fallback.unspent += tokens * Token
	}
}
