package lease

import (
	"math"
	"sync/atomic"
)

// These constants are the same in the script. Times are microseconds.
const (
	// Slice is the least time for which the bucket counts a lease as held. It counts a
	// lease in the slice of the lease and in the next: for at most two Slices.
	Slice = 10_000_000

	// MissingAfter is the time after a node's last heartbeat by which the others
	// withhold its part of the rate. Until then it must not refill a fallback bucket.
	MissingAfter = 1_850_000

	// MemberLife is for how long a node that sends no heartbeats counts as a member of
	// the fleet, whose part is withheld.
	MemberLife = 60_000_000

	FairShare = 1.03125 // this multiple of the rate is divided among the nodes, so that none of the rate is left over
)

// Call is one call of the script for one bucket: its arguments and its reply.
type Call struct {
	Policy Policy // the caller's

	Need  int64 // tokens for waiting requests; the bucket grants as many of them as it has
	Hold  int64 // 1 = granted tokens count as held, too, because the answer takes long
	Extra int64 // further tokens to lease, if all of Need is granted

	Arrived int64 // requests at this node since its last report
	Fair    int64 // 1 = Need and Extra are this node's share of what is scarce

	// Of the tokens leased in Slice, ReleasedNow are no longer held; of those leased in the
	// slice before, ReleasedBefore.
	Slice, ReleasedNow, ReleasedBefore int64

	Returned int64 // tokens to give back
	Debt     int64 // tokens spent without Redis, to be debited

	Nodes, Missing int64 // nodes of the fleet; those of them that have sent no heartbeat lately

	// Until is when its sender gives up, by Redis' clock; 0 = unknown. Executed later, it gets no
	// tokens: they would count as held, and nobody would spend them.
	Until int64

	Reply
}

// Reply is the script's answer: what it gave, and the state of the bucket.
type Reply struct {
	Granted int64 // of Need
	Leased  int64 // of Extra
	Level   int64 // micro-tokens that are left in the bucket
	Wait    int64 // microseconds until there is a token; 0 when there is one
	Slice   int64 // the number of the bucket's present slice
	Lasts   int64 // microseconds for which a lease of now counts as held
	Held    int64 // tokens that nodes hold, this one included
	Demand  int64 // thousandths of requests at all nodes in the last DemandSpan, decaying
}

// MaxWait bounds how long a request waits for a slow Redis, in microseconds. It also
// bounds the age of an answer that admits requests if the bucket is not leased from.
const MaxWait = 125_000

// Link measures how long Redis takes to answer, in microseconds. From this follow how
// long a request waits, how early a lease is fetched, and whether tokens are granted or
// leased. The measure rises at once and falls slowly.
type Link struct {
	Budget int64        // a request waits at least this long
	recent atomic.Int64 // the measure
}

// Record adds a measurement.
func (k *Link) Record(took int64) {
	recent := k.recent.Load()
	k.recent.Store(max(took, recent-(recent-took)/8))
}

// Wait is how long a request waits for an answer: two round trips, because the call in
// flight may not include the request.
func (k *Link) Wait() int64 { return max(k.Budget, min(2*k.recent.Load(), MaxWait)) }

// slow reports whether an answer takes longer than Budget. Then tokens for waiting
// requests are leased and not granted, so that a late answer is of use.
func (k *Link) slow() bool { return k.Wait() > k.Budget }

const (
	// A node makes no call to an empty bucket before it has a token again, or before this
	// pause is over. Otherwise a flood of requests would cost a call for each token.
	pause = 40_000 // microseconds

	// maxHeld bounds the tokens that a node holds of one bucket.
	maxHeld = 1 << 30

	// All in microseconds.
	prefetchAhead = 2_000     // the next lease is fetched this long before the present one is spent
	minIdle       = 100_000   // an idle lease of a busy key is given back after this time,
	maxIdle       = 2 * Slice // one of a key with few requests ends by itself before that

	sparse = 4 // fewer requests in a Slice: a key with few requests
)

// demand counts the requests for a bucket at this node. It expects as many in the next Slice
// as in the last one.
type demand struct {
	at     int64   // when record was last called
	recent float32 // requests in one Slice
	own    float32 // requests in the last DemandSpan, decaying, as the bucket counts those of all nodes
}

// record counts n requests since the last call. recent is a sliding window.
func (d *demand) record(n float32, now int64) {
	dt := max(0, now-d.at)
	d.at = max(d.at, now)
	d.own = d.own*float32(max(0, DemandSpan-dt))/DemandSpan + n
	if dt >= Slice {
		d.recent = n * Slice / float32(dt)
		return
	}
	d.recent = n + d.recent*(1-float32(dt)/Slice)
}

// expected is how many requests to lease tokens for: those of the next 1.25 s, but at
// least the square root of recent. A key with few requests gets few tokens, to keep until
// the lease ends.
func (d *demand) expected(few int64) int64 {
	if d.recent < sparse {
		return few
	}
	return int64(math.Ceil(max(float64(d.recent)/8, math.Sqrt(float64(d.recent)))))
}

// Begin fills in c, the next call to the bucket, for so many waiting requests. It reports false
// if no call is needed; else Complete or Fail must follow. With giveBack, the call returns all
// held tokens.
func (l *Lease) Begin(c *Call, waiting, now int64, f *Fleet, giveBack bool) bool {
	if l.inFlight || l.Policy.Blocked() {
		return false
	}
	l.trim(now)
	giveBack = giveBack || waiting == 0 && l.idle(now)
	*c = Call{Policy: l.Policy, Need: waiting, Returned: int64(l.returned), Nodes: f.Nodes, Missing: f.Missing}
	l.report(c, giveBack)
	if l.fallback != nil {
		c.Debt = l.debt()
		l.fallback.debt = 0
	}
	if l.Policy.Leased() {
		l.demand.record(float32(l.arrived), now)
		l.unserved = min(l.unserved, l.demand.recent) + float32(l.arrived)
		c.Arrived = int64(l.arrived)
		if !giveBack {
			// A burst of requests hardly misses what is few to each of the nodes.
			expected := l.demand.expected(min(sparse, l.Policy.Burst/(8*f.parts())))
			c.Extra = max(0, min(expected-waiting-int64(l.balance), maxHeld-waiting-int64(l.cur+l.prev)))
		}
		if l.chance > 0 && now-l.at < DemandSpan/2 {
			share := int64(l.unserved * l.chance)
			c.Fair, c.Need = 1, min(waiting, share)
			c.Extra = min(c.Extra, share-c.Need)
		}
		if f.Link.slow() && l.leasesTo(f) {
			c.Hold = 1
		}
	}
	l.arrived = 0
	if waiting+c.Extra+c.ReleasedNow+c.ReleasedBefore+c.Returned+c.Debt == 0 {
		return false
	}
	l.inFlight, l.paying, l.returned = true, c.Debt > 0, 0
	return true
}

// Complete applies the bucket's answer to a call that was sent at sent. The caller then
// calls Retry for the waiting requests.
//
// Leased tokens may be spent until the lease ends, even if the answer is late, because
// the bucket counts them as held. Granted tokens must be spent at once, because the
// bucket counts them as spent when it answers. If the answer is late, they are dropped.
// They are not given back: if the bucket has filled up since, that would add tokens.
//
// Requests that did not wait for the answer were admitted without it: a debt. The tokens
// of the answer pay it first, because the bucket gave some of them for these requests.
func (l *Lease) Complete(c *Call, sent, now int64, f *Fleet) {
	l.inFlight, l.paying = false, false
	l.trim(now)
	granted, leased := c.Granted, c.Leased
	if c.Hold == 1 {
		granted, leased = 0, leased+granted
	}
	l.granted, l.grantedUntil = int32(granted), sent+MaxWait
	if l.leasesTo(f) { // otherwise tokens are always granted, even if Redis is slow
		l.grantedUntil = sent + f.Link.Budget
	}
	if leased > 0 || l.cur+l.prev > 0 {
		l.add(leased, &c.Reply, sent)
	}
	if l.fallback != nil {
		l.granted -= int32(l.payDebt(granted))
		l.balance -= int32(l.payDebt(min(leased, int64(l.balance))))
	}
	// The bucket answered before now. So the level is too low by what the rate
	// has added since, never too high.
	l.level, l.at = c.Level, now
	l.held, l.peers = int32(min(c.Reply.Held, math.MaxInt32)), int32(min(max(0, c.Nodes-1), math.MaxInt32))
	l.compareDemand(c)
	l.lowWater = 0
	if l.Policy.Leased() && l.demand.recent >= sparse { // the next lease of few tokens would often end unused
		ahead := float64(prefetchAhead+f.Link.recent.Load()) / Slice
		l.lowWater = int32(min(math.Ceil(float64(l.demand.recent)*ahead), float64(c.Leased)))
	}
	l.setDeny(c, sent, now)
}

// compareDemand compares the fleet's demand with this node's. It sets how many requests
// the other nodes have, how many of this node have had no token, and whether tokens are scarce.
// A rate that adds less than a token for each node is not scarce: sharing it out would keep
// back for hours what is left.
func (l *Lease) compareDemand(c *Call) {
	fleet, burst := float32(c.Demand)/1000, float32(l.Policy.Burst)
	capacity := float32(float64(l.Policy.Rate) * DemandSpan / 1e12) // requests that the rate admits in a DemandSpan
	l.others = max(0, fleet-l.demand.own)
	chance := capacity * FairShare / max(1, fleet)
	l.unserved = max(0, l.unserved-float32(c.Granted+c.Leased)/chance)
	l.chance = 0
	if fleet <= max(capacity*9/8+burst/2, capacity/2+burst) { // whole bursts, as far apart as the bucket takes to fill
		l.unserved = 0
	} else if left := c.Level / Token; left < l.Policy.Burst/4 && float32(left+c.Nodes) < capacity {
		l.chance = chance
	}
}

// setDeny decides until when requests are refused without a call. The bucket's wait begins when
// it executes a call, and the next call takes as long to get there as this one: so it counts
// from sent. Where requests are refused, it counts from now, lest the next call be too early.
func (l *Lease) setDeny(c *Call, sent, now int64) {
	l.deny = 0
	if l.returned > 0 || c.Level >= Token && c.Granted == c.Need && c.Fair == 0 {
		return
	}
	from := now
	if c.Granted == c.Need {
		from = sent
	}
	l.deny = from + min(c.Wait, l.Policy.TimeFor(l.Policy.Units()*5/4+Token)) // the deepest debt, however damaged the bucket is
	if l.Policy.Leased() {
		// A burst of requests may end during the pause and so miss the tokens that the
		// rate adds in it. So the pause is at most the time of a tenth of the bucket.
		l.deny = max(l.deny, now+min(pause, l.Policy.TimeFor(l.Policy.Units()/10)))
	}
}

// leasesTo reports whether the nodes of a fleet lease tokens of this bucket: not if the burst is
// small beside the fleet, because a lease would keep too much of it from the other nodes.
func (l *Lease) leasesTo(f *Fleet) bool {
	return l.Policy.Leased() && l.Policy.Burst >= 3*f.Nodes
}

// Fail ends a call whose result is unknown. The tokens that it was to give back are
// lost, because a second call might give them back twice. The debt is kept: if the bucket has
// debited it, it is debited twice, which never admits too much.
func (l *Lease) Fail(c *Call) {
	l.inFlight, l.paying = false, false
	if c.Debt > 0 && l.fallback != nil {
		l.fallback.debt += c.Debt * Token
	}
}

// idle reports whether the lease has been without requests for so long that a call should report
// what was spent: for four times the mean time between two requests, or for minIdle if the bucket
// was more than half empty and is about to refill to its room. Until a call reports spent tokens,
// the bucket counts them as held and does not refill above them.
func (l *Lease) idle(now int64) bool {
	since := now - l.takenAt
	drained := l.balance == 0 && l.level < l.Policy.Units()/2 && l.levelAt(now+minIdle) == l.room()
	long := int64(max(minIdle, min(maxIdle, 4*Slice/max(1, l.demand.recent))))
	return since >= long || drained && since >= minIdle
}

// IsActive reports whether Sweep must be called periodically: the lease holds tokens, has
// tokens to give back, or has a fallback.
func (l *Lease) IsActive() bool { return l.cur+l.prev+l.returned > 0 || l.fallback != nil }

// Sweep ends a fallback that is over, and reports whether a call should be sent, because
// the lease is idle, or has a debt or tokens to give back.
func (l *Lease) Sweep(now int64, f *Fleet) (due bool) {
	l.trim(now)
	if l.fallback != nil && !l.inFlight {
		if l.refillFallback(now, f).level >= l.part(f) {
			l.fallback = nil // a new one would be the same
		}
	}
	held := l.cur+l.prev > 0
	return !l.inFlight && (l.debt() > 0 || l.returned > 0 || held && l.idle(now))
}
