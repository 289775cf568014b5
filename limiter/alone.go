package limiter

import "math"

// This file is a node deciding alone, while the bucket cannot be asked.

// mostNodes bounds the part of a bucket that a node takes, so that its units fit.
const mostNodes = 1000

// local is a node's part of the bucket while it cannot be asked: it starts from
// the last level seen, is refilled by the rate up to the burst, and a token
// costs as many of its units as there are nodes, so that all of them together
// admit what the bucket would have.
//
// unspent is the same without what was spent here. The difference is what the
// bucket must be told. It shrinks where unspent is full and level catches up:
// after an outage of an hour a bucket does not owe the hour's requests, only
// what is missing from it now.
//
// It goes on where it was when the bucket answers for a while in between: that
// many short outages are one to it. What was seen of the bucket since only
// lowers it.
//
// Invariant: level <= unspent <= most; below 0 only as far as the bucket was.
type local struct {
	nodes          int64
	level, unspent int64 // units, of which cost are a token
	at             int64 // microseconds: up to here both are refilled
	seen           int64 // when the bucket's level was seen that bounds them
	policy         Policy
}

// away returns the local bucket. One never seen is full, as an absent one is.
func (l *lease) away(p Policy, now, nodes int64) *local {
	nodes = min(max(nodes, 1), mostNodes)
	if l.local == nil {
		own := l.policy
		if own.r == 0 {
			own = p
		}
		l.local = &local{nodes: nodes, level: own.units(), unspent: own.units(), at: now, seen: math.MinInt64, policy: own}
	}
	a, v := l.local, &l.view
	a.refill(now)
	if v.known && v.at > a.seen && a.policy.sameLimits(l.policy) {
		if a.unspent == a.level {
			a.nodes = nodes
		}
		a.seen = v.at
		a.lower(max(v.level, grown(v.level, v.most, (now-v.at)/a.nodes, a.policy.r))) // the others took theirs
	}
	a.adopt(p)
	return a
}

// lower bounds the level, and keeps what is owed.
func (a *local) lower(level int64) {
	excess := max(0, a.level-level)
	a.level -= excess
	a.unspent -= excess
}

// cost of a token. Burst*p <= 2^52, so it fits.
func (a *local) cost() int64 { return a.policy.p * a.nodes }

// most is the part's burst: never less than a token, or a fleet of more nodes
// than tokens would admit nobody.
func (a *local) most() int64 { return max(a.policy.units(), a.cost()) }

func (a *local) refill(now int64) {
	if now > a.at {
		a.level = grown(a.level, a.most(), now-a.at, a.policy.r)
		a.unspent = grown(a.unspent, a.most(), now-a.at, a.policy.r)
		a.at = now
	}
}

// adopt puts p in force, keeping the filled share. Versions do not matter here: a
// node's own policy is the one it goes by alone.
func (a *local) adopt(p Policy) {
	if !a.policy.sameLimits(p) && p.r > 0 {
		for _, level := range []*int64{&a.level, &a.unspent} {
			s := state{level: min(*level, a.policy.units()), policy: a.policy}
			s.rescale(p)
			*level = s.level
		}
		a.policy = p
	}
}

// spend takes a token, or tells how long there is none.
func (a *local) spend() (ok bool, wait int64) {
	if a.level < a.cost() {
		return false, ceilDiv(a.cost()-a.level, a.policy.r)
	}
	a.level -= a.cost()
	return true, 0
}

// unspend takes a token back that was spent here, and reports whether one was:
// it need not travel.
func (a *local) unspend(now int64) bool {
	a.refill(now)
	if a.unspent-a.level < a.cost() {
		return false
	}
	a.level += a.cost()
	return true
}

// alone decides one request by the local bucket, or tells how long it has no token.
func (l *lease) alone(p Policy, now, nodes int64) (ok bool, wait int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away(p, now, nodes).spend()
}

// admitAnyway takes a token that there may not be.
func (l *lease) admitAnyway(p Policy, now, nodes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.away(p, now, nodes)
	a.level = max(min(0, a.level), a.level-a.cost())
}

// owes reports whether the bucket has yet to hear of tokens spent here.
func (l *lease) owes(now int64) bool {
	if l.local == nil {
		return false
	}
	l.local.refill(now)
	return l.local.unspent > l.local.level
}

// claim returns the tokens that the bucket must debit, rounded up, at most one
// burst. settled or unclaim must follow.
func (l *lease) claim(now int64) int64 {
	if !l.owes(now) {
		return 0
	}
	a := l.local
	tokens := ceilDiv(a.unspent-a.level, a.cost())
	a.unspent = a.level
	return tokens
}

// unclaim takes back a debt that was not confirmed. (It may have been debited
// all the same: then it is debited twice, which never admits too much.)
func (l *lease) unclaim(tokens, now, nodes int64) {
	if tokens > 0 {
		a := l.away(l.policy, now, nodes)
		a.unspent = min(a.most(), a.unspent+tokens*a.cost())
	}
}

// settled drops the local bucket once nothing more is owed and it is full: the
// next one would be no other.
func (l *lease) settled(now int64) {
	if l.local != nil && !l.owes(now) && !l.flight.under && now >= l.ill.Load() && l.local.level == l.local.policy.units() && l.local.level == l.local.most() {
		l.local = nil
	}
}

// convalesce has a node that decided alone go on doing so until the others have
// heard that the bucket is back, and have told it what they spent: before that
// it shows tokens that are gone.
func (l *lease) convalesce(until int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.local != nil {
		l.ill.Store(until)
	}
}

// payWith uses tokens that came too late for their requests, which were decided
// alone, for what was spent here, and returns the rest.
func (l *lease) payWith(tokens, now int64) (rest int64) {
	if !l.owes(now) {
		return tokens
	}
	a := l.local
	paid := min(tokens, ceilDiv(a.unspent-a.level, a.cost()))
	a.unspent = max(a.level, a.unspent-paid*a.cost())
	return tokens - paid
}
