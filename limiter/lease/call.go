package lease

import "math"

const (
	// An empty bucket is not visited until its next token; where many nodes wait
	// for it, longer. Refusing only to the next token would cost a call per token
	// in a flood.
	backoffLeast, backoffMost = 10_000, 100_000 // microseconds

	// mostHeld bounds what a node holds of one bucket, in tokens.
	mostHeld = 1 << 30
)

// Begin makes the next call, with so many requests waiting for it, or reports that
// there is none to send. all: everything held goes back. Complete or Fail must
// follow.
func (l *Lease) Begin(c *Call, waiting, now int64, f *Fleet, all bool) bool {
	if l.inFlight || l.policy.Rate == 0 {
		return false
	}
	l.trim(now)
	all = all || l.closed || waiting == 0 && l.idle(now)
	*c = Call{Policy: l.policy, Need: waiting, Ret: int64(l.ret), Nodes: f.Nodes, Missing: f.Missing, Node: f.Node}
	l.ledger.settle(c, all)
	c.Debt = l.claim()
	if l.policy.leased() {
		span := float32(l.policy.demandSpan())
		l.own = l.own*span/(span+float32(max(0, now-l.demand.at))) + float32(l.arrived)
		l.demand.note(float32(l.arrived), now)
		l.unmet = min(l.unmet, l.demand.recent) + float32(l.arrived)
		c.Arrived, c.Entitled, l.arrived = int64(l.arrived), int64(l.unmet*1000), 0
		if !all {
			c.Extra = max(0, min(l.demand.ahead()-waiting-int64(l.balance), mostHeld-waiting-int64(l.cur+l.prev)))
		}
		if f.Link.slow() {
			c.Hold = 1
		}
	}
	if c.Need+c.Extra+c.Rel0+c.Rel1+c.Ret+c.Debt == 0 {
		return false
	}
	l.inFlight, l.since, l.closed, l.ret = true, now, false, 0
	return true
}

// Complete takes the bucket's answer to a call that was sent at sent. Those who
// waited Retry then.
//
// What is leased may be spent until the lease ends, however late the answer is: it
// counts as held. What is granted is for now, so that it is spent when the bucket
// counts it: where the answer is late it is dropped. To give it back would be one
// token too many where the bucket has filled up since.
func (l *Lease) Complete(c *Call, sent, now int64, f *Fleet) {
	l.inFlight, l.since = false, never
	l.trim(now)
	leased := c.Leased
	if c.Hold == 1 {
		leased += c.Granted
	} else {
		l.loose, l.looseEnd = int32(c.Granted), sent+l.fresh(f)
	}
	if leased > 0 || l.cur+l.prev > 0 {
		l.enter(leased, &c.Reply, sent)
	}
	l.see(c, now)
	l.low = 0
	if l.policy.leased() {
		l.low = int32(min(l.demand.lowWater(f.Link.recent.Load()), c.Leased))
	}
	l.setDeny(c, now)
}

// fresh is how long after a call was sent its tokens may admit requests. Of a
// bucket that is not leased from all tokens are granted, however slow Redis is.
func (l *Lease) fresh(f *Fleet) int64 {
	if !l.policy.leased() {
		return mostWait
	}
	return f.Link.Budget
}

// see remembers the state of the bucket; now is later than its own time of the
// answer, and so shows less than has come since.
func (l *Lease) see(c *Call, now int64) {
	l.View = View{Level: c.Level, At: now, held: int32(min(c.Reply.Held, math.MaxInt32)), shared: c.Nodes > 1}
	l.owner = c.Owner == 1
	l.weigh(c)
}

// weigh compares the fleet's demand with this node's: how much the other nodes take,
// and for how many of this node's requests it has had tokens.
func (l *Lease) weigh(c *Call) {
	fleet, capacity := float32(c.Demand)/1000, float32(l.policy.capacity()/1000)
	others := max(0, fleet-l.own)
	l.others = others / max(1, l.own)
	l.rate = others / float32(l.policy.demandSpan())
	if l.unmet = max(0, l.unmet-float32(c.Granted+c.Leased)*fleet/capacity/fairShare); fleet <= capacity*overloadFrom {
		l.unmet = 0
	}
}

// setDeny decides until when requests are refused without asking.
func (l *Lease) setDeny(c *Call, now int64) {
	l.deny = 0
	if l.ret > 0 || c.Level >= Token && c.Granted == c.Need {
		return
	}
	pause := max(1, c.Wait)
	if l.policy.leased() {
		l.backoff = nextBackoff(l.backoff, c.Granted+c.Leased)
		pause = max(pause, min(int64(l.backoff), l.mostPause()))
	}
	l.deny = now + pause
}

// nextBackoff is how long an exhausted bucket is not visited after a call that
// yielded tokens, given how long it was before: the more nodes share what comes,
// the less a call yields, and the rarer they visit.
func nextBackoff(before int32, yield int64) int32 {
	switch {
	case yield < 32:
		return min(backoffMost, max(backoffLeast, 2*before))
	case yield > 128:
		return max(backoffLeast, before/2)
	}
	return max(backoffLeast, before)
}

// mostPause bounds the backoff to the time in which about a tenth of the burst
// comes: a burst of requests that ends with the bucket misses what comes in it.
func (l *Lease) mostPause() int64 { return min(40_000, l.policy.timeFor(l.policy.units()/10)) }

// Fail ends a call of which nothing is known. What it carried is gone: to send it
// again might count it twice. It returns how many tokens were to go back.
func (l *Lease) Fail(c *Call, now int64) (dropped int64) {
	l.inFlight, l.since = false, now
	l.unclaim(c.Debt)
	return c.Ret
}

// InFlight reports whether a call is.
func (l *Lease) InFlight() bool { return l.inFlight }

// idle reports whether no request has come for longer than the demand lets expect.
func (l *Lease) idle(now int64) bool { return now-l.takenAt >= l.demand.patience() }

// Sweep looks at a lease now and then. due: a call should be sent, because the
// lease is idle or owes something. active: it should be looked at again.
func (l *Lease) Sweep(now int64, f *Fleet) (due, active bool) {
	l.trim(now)
	held := l.cur+l.prev > 0
	if l.alone != nil && !l.inFlight {
		if _, of := l.share(f); l.refillAlone(now, f, of).level >= max(Token, l.policy.units()/of) {
			l.alone = nil // the next one would be no other
		}
	}
	due = l.Owes() || l.ret > 0 || held && (l.closed || l.idle(now))
	return due && !l.inFlight, held || l.alone != nil || l.ret > 0 || l.inFlight
}
