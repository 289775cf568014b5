package limiter

// An empty bucket is left alone until its next token; where many nodes wait
// for it, longer. Refusing only to the next token would cost a trip per token
// in a flood.
const denyLeast, denyMost = 10_000, 100_000 // microseconds

// nextPatience is how long an exhausted bucket is left alone after a visit that
// yielded tokens, given how long it was before: the more nodes share what comes,
// the less a visit yields, and the rarer they visit.
// denyLeast <= nextPatience <= denyMost.
func nextPatience(before, yield int64) int64 {
	switch {
	case yield < 32:
		return min(denyMost, max(denyLeast, 2*before))
	case yield > 128:
		return max(denyLeast, before/2)
	}
	return max(denyLeast, before)
}

// pauseOf is how long a bucket is left alone that has no token for wait: never
// less, and else patience, but no longer than three fifths of a window, in which
// about a seventh of the burst comes. What comes in that time is what a burst of
// requests that ends with the bucket misses.
func pauseOf(wait, patience int64, p Policy) int64 {
	return max(wait, min(patience, windowOf(p)*3/5))
}

// setDeny decides until when requests are refused without asking, after the
// answer c. Call with mu held.
func (l *lease) setDeny(c *call, yield, now int64) {
	l.deny.Store(0)
	if l.flight.closing || l.ret > 0 || c.level >= c.p && c.granted == c.need {
		return
	}
	pause := max(1, c.wait)
	if c.level < c.p && l.life > 0 && l.policy.Burst >= leastLeased {
		l.patience = nextPatience(l.patience, yield)
		pause = pauseOf(pause, l.patience, l.policy)
	}
	l.deny.Store(now + pause)
}
