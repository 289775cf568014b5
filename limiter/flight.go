package limiter

import "math"

// flight is a lease's call that is on its way: depart, then one of
//
//	land   the answer came in time
//	lose   nothing is known of it; overdue, its answer may still come: late, or vain
//	abort  it was not carried out
//
// Invariant: of under and overdue at most one is set, and no flight departs
// while either is.
type flight struct {
	under   bool
	overdue bool
	closing bool  // it closes the books by an old policy
	at      int64 // when the last one departed
}

// depart makes the call of the next flight, or reports that there is no need of
// one. mine are tokens wanted beyond the queue's; all gives everything back.
func (l *lease) depart(c *call, p Policy, now, mine int64, all bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flight.under || l.flight.overdue {
		return false
	}
	l.trim(now)
	l.settled(now)
	closing := l.follow(p, now)
	*c = call{key: c.key, policy: l.policy, life: l.life, from: l.epoch, ret: l.ret}
	if !closing { // else the new policy counts from the next flight on
		c.need = int64(len(l.queue)) + mine
	}
	all = all || closing || c.need == 0 && l.idles(now)

	balance, used := l.takeOff(c, now, all)
	l.count(used+c.need, now)
	if !all && now >= l.ill.Load() {
		c.extra, c.spare = l.demand.ask(c.need, balance, l.policy, l.life)
	}
	c.debt = l.claim(now)
	if l.policy.r == 0 || c.need+c.extra+c.spare+c.rel0+c.rel1+c.ret+c.debt == 0 {
		return false
	}
	l.flight = flight{under: true, closing: closing, at: now}
	l.ret, l.giving = 0, c.ret
	l.aboard = int(max(0, c.need-mine))
	return true
}

// count tells the demand of n requests, and of those that were refused since.
func (l *lease) count(n, now int64) {
	refused := l.refused.Load()
	l.demand.note(now, n+refused-l.counted, l.policy)
	l.counted = refused
	l.busy.Store(l.demand.busy())
}

// land takes the bucket's answer to a call that was sent at sent. mine of what
// was granted the caller keeps. again: another flight is wanted.
//
// What is granted is for now, so that it is spent when the bucket counts it. A
// node that stood still meanwhile (SIGSTOP, a suspended machine) drops it: to
// give it back would be one token too many where the bucket has filled up since.
func (l *lease) land(c *call, sent, now, mine int64) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight.under, l.giving = false, 0
	l.trim(now)
	l.enterLeased(c, sent, false)
	l.see(c, now)
	if c.debt > 0 || l.local != nil {
		l.settled(now)
	}

	granted, others := c.granted-mine, rejected
	if l.budget > 0 && now-sent > l.budget {
		granted, others = 0, missed
	}
	first := min(granted, int64(l.aboard)) // fewer than granted: the others have left
	l.ret += granted - first
	l.setDeny(c, now)
	rest := l.aboard - int(first)
	l.answer(int(first), given)
	l.answer(rest, others)
	l.aboard = 0
	l.serve(now)
	l.idle = idleness{word: l.word.Load(), refused: l.refused.Load(), since: now}
	l.low.Store(l.demand.ahead(l.policy))
	return len(l.queue) > 0 || l.ret > 0 && l.policy.Burst < leastLeased
}

// see remembers how the bucket stands; now is later than its own time of the
// answer, and so shows less than has come since.
func (l *lease) see(c *call, now int64) {
	level := c.level
	if c.p != l.policy.p { // counted in units of a policy not known here
		level = c.remaining() * l.policy.p
	}
	l.view = view{known: true, level: min(level, l.policy.units()), most: max(0, l.policy.Burst-c.held) * l.policy.p, at: now}
	l.seen.Add(1)
}

// lose ends a flight of which nothing is known. What it carried is gone: to
// send it again might count it twice. Where its answer may yet come, this node
// decides alone until then: a debt that overtook the flight would find a bucket
// that is emptier than it should be. It returns the tokens that were to go back.
func (l *lease) lose(c *call, now, nodes int64, overdue bool) (dropped int64, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight.under, l.giving = false, 0
	l.unclaim(c.debt, now, nodes)
	aboard := l.aboard
	l.aboard = 0
	if l.flight.overdue = overdue; overdue {
		l.ill.Store(math.MaxInt64)
		aboard = len(l.queue)
	}
	l.answer(aboard, missed)
	return c.ret, len(l.queue) > 0
}

// vain ends the wait for an answer that was overdue.
func (l *lease) vain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight.overdue = false
	l.ill.Store(0)
}

// abort ends a flight that was not carried out: all is as it was before.
func (l *lease) abort(c *call, now, nodes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight.under, l.giving, l.aboard = false, 0, 0
	l.unclaim(c.debt, now, nodes)
	l.ret += c.ret
	l.putBack(c)
	l.trim(now)
}

// late takes the answer to a flight that was given up: its tokens are never
// spent. What was granted pays for what was spent here instead, what was leased,
// and so counted as held all the time, goes back.
func (l *lease) late(c *call, sent, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight.overdue = false
	l.ill.Store(0)
	l.trim(now)
	l.enterLeased(c, sent, true)
	l.settledLate(c.debt, now)
	l.payWith(c.granted, now)
	l.ret += c.leased
	l.deny.Store(0)
	l.see(c, now)
}
