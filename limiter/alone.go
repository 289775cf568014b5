package limiter

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
// Invariant: level <= unspent <= most; below 0 only as far as the bucket was.
type local struct {
	nodes          int64
	level, unspent int64 // units, of which cost are a token
	at             int64 // microseconds: up to here both are refilled
	policy         Policy
}

// away returns the local bucket. One never seen is full, as an absent one is.
func (l *lease) away(p Policy, now, nodes int64) *local {
	if l.local == nil {
		own := l.policy
		if own.r == 0 {
			own = p
		}
		nodes = min(max(nodes, 1), mostNodes)
		level := own.units()
		if v := &l.view; v.known {
			level = max(v.level, grown(v.level, v.most, (now-v.at)/nodes, own.r)) // the others took theirs
		}
		l.local = &local{nodes: nodes, level: min(level, own.units()), unspent: level, at: now, policy: own}
	}
	l.local.advance(p, now)
	return l.local
}

// cost of a token. Burst*p <= 2^52, so it fits.
func (a *local) cost() int64 { return a.policy.p * a.nodes }

// most is the part's burst: never less than a token, or a fleet of more nodes
// than tokens would admit nobody.
func (a *local) most() int64 { return max(a.policy.units(), a.cost()) }

// advance refills up to now and puts p in force, keeping the filled share.
// Versions do not matter here: a node's own policy is the one it goes by alone.
func (a *local) advance(p Policy, now int64) {
	if now > a.at {
		a.level = grown(a.level, a.most(), now-a.at, a.policy.r)
		a.unspent = grown(a.unspent, a.most(), now-a.at, a.policy.r)
		a.at = now
	}
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
	a.advance(a.policy, now)
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
	l.local.advance(l.local.policy, now)
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

// settled ends the local bucket once nothing more is owed: the next one starts
// from what has been seen since.
func (l *lease) settled(now int64) {
	if l.local != nil && !l.owes(now) && !l.flight.under && !l.flight.overdue && now >= l.ill.Load() {
		l.local = nil
	}
}

// convalesce has a node that decided alone go on doing so until the others have
// heard that the bucket is back, and have told it what they spent: before that
// it shows tokens that are gone.
func (l *lease) convalesce(until int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.local != nil && !l.flight.overdue {
		l.ill.Store(until)
	}
}

// settledLate notes that a debt was debited after it was taken back.
func (l *lease) settledLate(tokens, now int64) {
	if tokens == 0 || l.local == nil {
		return // another flight has paid as well: lost
	}
	a := l.local
	a.advance(a.policy, now)
	a.unspent = max(a.level, a.unspent-tokens*a.cost())
}

// payWith uses tokens that came too late for what was spent here instead.
func (l *lease) payWith(tokens, now int64) {
	if l.owes(now) {
		l.local.unspent = max(l.local.level, l.local.unspent-tokens*l.local.cost())
	}
}
