package lease

import (
	"math"
	"sync/atomic"
)

// What a node and the script agree on. Times are microseconds.
const (
	// Epoch is how long what is leased counts as held, at least; at most twice.
	Epoch = 10_000_000

	// OwnerLife is how long after its last visit a node still owns a bucket whose
	// burst is smaller than the fleet.
	OwnerLife = 60_000_000

	// MissingAfter is how long after a node's last heartbeat the others hold its
	// share back, by the latest. Until then it must not refill a fallback bucket.
	MissingAfter = 1_850_000

	// MemberLife is how long a node that sends no heartbeats counts as a member of
	// the fleet whose share is held back.
	MemberLife = 60_000_000

	OverloadFrom = 1.125   // of the rate: more demand than noise explains
	FairShare    = 1.03125 // of the rate is shared out, so that all of it is
)

// Call is one visit to one bucket: the request to the script and its reply.
type Call struct {
	Policy Policy // the caller's

	Need  int64 // tokens to admit at once, as many as there are
	Hold  int64 // 1: what is granted counts as held as well, for the answer takes long
	Extra int64 // tokens to lease on top, if Need was met

	Arrived  int64 // requests at this node since its last report
	Entitled int64 // thousandths of a request: those for which it has had no token

	Epoch, Rel0, Rel1 int64 // no longer held, of those leased in Epoch, and in the one before

	Ret  int64 // tokens to give back
	Debt int64 // tokens spent without Redis, to be debited

	Nodes, Missing int64 // of the fleet, and of them those that may be cut off
	Node           int64 // the caller

	Reply
}

// Reply is the state of a bucket after a visit.
type Reply struct {
	Granted int64 // of Need
	Leased  int64 // of Extra
	Level   int64 // micro-tokens
	Wait    int64 // microseconds until there is a token; 0 when there is one
	Epoch   int64
	Lasts   int64 // microseconds for which what is leased now counts as held
	Held    int64 // tokens that nodes hold, this one included
	Demand  int64 // of the whole fleet
	Owner   int64 // 1: the caller is the owner
}

// mostWait bounds what a request waits for a slow Redis, and how old an answer
// may be that admits a request of a bucket that is not leased from.
const mostWait = 125_000

// Link is how long Redis takes to answer, as last measured. What a request waits
// for it, how far ahead leases are taken and whether tokens are granted or leased
// follow from it. It rises at once and falls slowly.
type Link struct {
	Budget int64 // a request waits that long at least
	recent atomic.Int64
}

// Note takes a measurement.
func (k *Link) Note(took int64) {
	recent := k.recent.Load()
	k.recent.Store(max(took, recent-(recent-took)/8))
}

// Wait is how long a request waits for an answer: two round trips, since the one
// under way may have left without it.
func (k *Link) Wait() int64 { return max(k.Budget, min(2*k.recent.Load(), mostWait)) }

// slow reports whether answers come so late that what the rate brings meanwhile
// counts: tokens are then leased, not granted.
func (k *Link) slow() bool { return k.Wait() > k.Budget }

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
	if l.inFlight || l.Policy.Rate == 0 {
		return false
	}
	l.trim(now)
	all = all || l.closed || waiting == 0 && l.idle(now)
	*c = Call{Policy: l.Policy, Need: waiting, Ret: int64(l.ret), Nodes: f.Nodes, Missing: f.Missing, Node: f.Node}
	l.report(c, all)
	if l.HasDebt() {
		c.Debt = l.takeDebt()
	}
	if l.Policy.Leased() {
		span := float32(l.Policy.DemandSpan())
		l.own = l.own*span/(span+float32(max(0, now-l.demand.at))) + float32(l.arrived)
		l.demand.record(float32(l.arrived), now)
		l.unmet = min(l.unmet, l.demand.recent) + float32(l.arrived)
		c.Arrived, c.Entitled, l.arrived = int64(l.arrived), int64(l.unmet*1000), 0
		if !all {
			c.Extra = max(0, min(l.demand.expected()-waiting-int64(l.balance), mostHeld-waiting-int64(l.cur+l.prev)))
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
		l.granted, l.grantedUntil = int32(c.Granted), sent+mostWait
		if l.Policy.Leased() { // else all tokens are granted, however slow Redis is
			l.grantedUntil = sent + f.Link.Budget
		}
	}
	if leased > 0 || l.cur+l.prev > 0 {
		l.add(leased, &c.Reply, sent)
	}
	// now is later than the bucket's own time of the answer, and so the view shows
	// less than has come since.
	l.View = View{Level: c.Level, At: now, held: int32(min(c.Reply.Held, math.MaxInt32)), shared: c.Nodes > 1}
	l.owner = c.Owner == 1
	l.compareDemand(c)
	l.low = 0
	if l.Policy.Leased() {
		l.low = int32(min(l.demand.lowWater(f.Link.recent.Load()), c.Leased))
	}
	l.setDeny(c, now)
}

// compareDemand compares the fleet's demand with this node's: how much the other
// nodes take, and for how many of this node's requests it has had tokens.
func (l *Lease) compareDemand(c *Call) {
	fleet, capacity := float32(c.Demand)/1000, float32(l.Policy.Capacity()/1000)
	others := max(0, fleet-l.own)
	l.others = others / max(1, l.own)
	l.rate = others / float32(l.Policy.DemandSpan())
	if l.unmet = max(0, l.unmet-float32(c.Granted+c.Leased)*fleet/capacity/FairShare); fleet <= capacity*OverloadFrom {
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
	if l.Policy.Leased() {
		// The more nodes share what comes, the less a call yields, and the rarer they call.
		switch yield := c.Granted + c.Leased; {
		case yield < 32:
			l.backoff *= 2
		case yield > 128:
			l.backoff /= 2
		}
		l.backoff = max(backoffLeast, min(backoffMost, l.backoff))
		// A burst of requests that ends with the bucket misses what comes in the
		// pause: so that is a tenth of the burst at most.
		pause = max(pause, min(int64(l.backoff), 40_000, l.Policy.TimeFor(l.Policy.Units()/10)))
	}
	l.deny = now + pause
}

// Fail ends a call of which nothing is known. What it carried is gone: to send it
// again might count it twice. It returns how many tokens were to go back.
func (l *Lease) Fail(c *Call, now int64) (dropped int64) {
	l.inFlight, l.since = false, now
	l.restoreDebt(c.Debt)
	return c.Ret
}

// InFlight reports whether a call is.
func (l *Lease) InFlight() bool { return l.inFlight }

// idle reports whether no request has come for longer than the demand lets expect.
func (l *Lease) idle(now int64) bool { return now-l.takenAt >= l.demand.idleAfter() }

// Sweep looks at a lease now and then. due: a call should be sent, because the
// lease is idle or has a debt. active: it should be looked at again.
func (l *Lease) Sweep(now int64, f *Fleet) (due, active bool) {
	l.trim(now)
	held := l.cur+l.prev > 0
	if l.fallback != nil && !l.inFlight {
		if parts := max(1, l.parts(f)); l.refillFallback(now, f, parts).level >= max(Token, l.Policy.Units()/parts) {
			l.fallback = nil // the next one would be no other
		}
	}
	due = l.HasDebt() || l.ret > 0 || held && (l.closed || l.idle(now))
	return due && !l.inFlight, held || l.fallback != nil || l.ret > 0 || l.inFlight
}
