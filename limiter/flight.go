package limiter

import "time"

// flight is a lease's call that is on its way: depart, then one of
//
//	land   the answer has come
//	lose   nothing is known of it
//	abort  it was not carried out
//
// Invariant: no flight departs while another is under way.
type flight struct {
	under   bool
	closing bool  // it closes the books by an old policy
	at      int64 // when the last one departed
}

// depart makes the call of the next flight, or reports that there is no need of
// one. mine are tokens wanted beyond the queue's; all gives everything back.
func (l *lease) depart(c *call, p Policy, now, nodes, mine int64, all bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flight.under {
		return false
	}
	l.trim(now)
	l.settled(now)
	closing := l.follow(p, now)
	*c = call{key: c.key, policy: l.policy, life: l.life, from: l.epoch, ret: l.ret, parts: 1}
	if !closing { // else the new policy counts from the next flight on
		c.need = int64(len(l.queue)) + mine
	}
	if l.link != nil && l.link.slow() && l.policy.Burst >= leastLeased {
		c.hold = 1
	}
	all = all || closing || c.need == 0 && l.idles(now)

	balance, used := l.takeOff(c, all)
	l.count(used+c.need, now)
	if !all && now >= l.ill.Load() {
		if !l.exhausted(now) {
			c.parts = nodes
			if l.demand.drains(l.policy) {
				c.parts *= drainParts
			}
		}
		c.extra, c.spare = l.demand.ask(c.need, balance, l.policy, l.life, l.delay())
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

// exhausted reports whether the bucket was empty when it was seen, a short while
// ago. What comes then is shared by who asks first: it would be refused or
// admitted elsewhere just as well.
func (l *lease) exhausted(now int64) bool {
	return l.view.known && l.view.level < l.policy.p && l.view.levelNow(l.policy, now) < l.policy.units()/4
}

// delay is how long the bucket takes to answer.
func (l *lease) delay() int64 {
	if l.link == nil {
		return 0
	}
	return l.link.recent.Load()
}

// land takes the bucket's answer to a call that was sent at sent. mine of what
// was granted the caller keeps. again: another flight is wanted.
//
// What is leased pays for what was spent alone meanwhile, and the rest may be
// spent until the lease ends, however late the answer is: it counts as held. What
// is granted is for now, so that it is spent when the bucket counts it: where the
// answer is late, what does not pay is dropped. To give it back would be one
// token too many where the bucket has filled up since.
func (l *lease) land(c *call, sent, now, mine int64) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight.under, l.giving = false, 0
	granted, yield := c.granted-mine, c.granted+c.leased
	if c.hold == 1 {
		c.leased, granted = c.leased+granted, 0
	}
	l.trim(now)
	l.enterLeased(c, c.leased-l.payWith(c.leased, now), sent)
	l.see(c, now)
	if c.debt > 0 || l.local != nil {
		l.settled(now)
	}
	l.setDeny(c, yield, now)
	switch {
	case c.hold == 1:
	case l.late(now - sent):
		if now-sent <= int64(flightTimeout/time.Microsecond) {
			l.payWith(granted, now)
		}
	default:
		first := min(granted, int64(l.aboard)) // fewer than granted: the others have left
		l.ret += l.payWith(granted-first, now)
		rest := l.aboard - int(first)
		l.answer(int(first), given)
		l.answer(rest, rejected)
	}
	l.aboard = 0
	l.serve(now)
	l.idle = idleness{word: l.word.Load(), refused: l.refused.Load(), since: now}
	l.low.Store(l.demand.ahead(l.policy, l.delay()))
	return len(l.queue) > 0 || l.ret > 0 && l.policy.Burst < leastLeased
}

// late reports whether an answer of that age is too old to admit anybody. Of a
// bucket that is not leased from all tokens are granted, however slow Redis is.
func (l *lease) late(age int64) bool {
	switch {
	case l.link == nil:
		return false
	case l.policy.Burst < leastLeased:
		return age > l.link.wait()
	}
	return age > l.link.budget
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
// send it again might count it twice. It returns the tokens that were to go back.
func (l *lease) lose(c *call, now, nodes int64) (dropped int64, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight.under, l.giving = false, 0
	l.unclaim(c.debt, now, nodes)
	l.answer(l.aboard, missed)
	l.aboard = 0
	return c.ret, len(l.queue) > 0
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
