// Package lease is a node's part of a token bucket that a fleet shares. The node leases
// tokens from the bucket and spends them without asking it. The package is pure: no I/O,
// no clock, no lock. Times are microseconds and passed in.
//
//	policy.go    rate and burst
//	lease.go     a node's part of the bucket: Take, and the status for headers
//	call.go      a call to the bucket: how many tokens it asks for; Begin, then Complete or Fail
//	fallback.go  how requests are decided while the bucket is unreachable
//
// The bucket itself is token_bucket.lua. It counts leased tokens as held until a node
// reports them spent or they age out, and level + held <= burst.
package lease

import (
	"math"
	"time"
)

// Outcome is how a lease decides a request.
type Outcome uint8

const (
	NeedRemote Outcome = iota // the shared bucket decides: wait for it
	Granted                   // admitted
	Denied                    // refused: the bucket has no token before a known time
)

// never is a time before all others.
const never = math.MinInt64 / 2

// Lease is one node's part of one bucket: the tokens that the node holds, and what it
// knows of the bucket.
//
//	Take ── balance ────────────────────────────────> Granted
//	  ├─ deny ──────────────────────────────────────> Denied
//	  └─ NeedRemote ── Begin ══ script ══ Complete ─> Take again
//	                     ╚═ Fail ───────────────────> TakeFallback (a debt)
//
// Invariant: at most one call is in flight.
type Lease struct {
	Policy Policy // in force at this node: see SetPolicy
	ledger        // the tokens that this node holds

	// The bucket as of the last answer.
	level, at int64 // it contained so many micro-tokens at that time
	held      int32 // tokens that nodes hold
	peers     int32 // other nodes of the fleet

	grantedUntil int64 // granted may be spent before this time
	deny         int64 // before this time there is no token, as of the last answer: see refuses
	takenAt      int64 // when Take was last called

	demand   demand
	others   float32 // requests at other nodes in the last DemandSpan, as of the last answer
	unserved float32 // requests at this node that had no token yet, while more is demanded than the rate brings
	chance   float32 // that a request gets a token, while tokens are scarce; 0 = they are not

	granted  int32 // tokens granted to waiting requests
	returned int32 // tokens to give back that are not in the ledger
	arrived  int32 // requests since the last call
	lowWater int32 // a balance below it starts a call

	inFlight bool
	paying   bool      // the call in flight debits a debt
	fallback *fallback // not nil = tokens may have been spent that the bucket does not know of
}

// Units returns the micro-tokens of a full bucket.
func (p *Policy) Units() int64 { return p.Burst * Token }

// Earned returns the micro-tokens that the rate adds in dt microseconds, at most a full
// bucket. The script does the same operations on the same doubles.
func (p *Policy) Earned(dt int64) int64 {
	return int64(min(float64(p.Units()), math.Floor(float64(dt)*float64(p.Rate)/1e6)))
}

// TimeFor returns the microseconds in which the rate adds so many micro-tokens, rounded
// up. With rate 0 that is Forever.
func (p *Policy) TimeFor(units int64) int64 {
	if units <= 0 {
		return 0
	}
	return int64(min(Forever, math.Ceil(float64(units)*1e6/float64(p.Rate))))
}

// Forever is the longest time, in microseconds: 142 years.
const Forever = MaxUnits

// Init initializes a zero Lease. It holds no tokens.
func (l *Lease) Init(p Policy, now int64) {
	l.Policy, l.demand.at, l.takenAt = p, now, now
	l.level, l.at = p.Units(), never
}

// SetPolicy sets another policy. Tokens that are held are as good as spent: there may be more
// than the new burst has.
func (l *Lease) SetPolicy(p Policy) {
	l.Policy = p
	l.balance, l.granted, l.deny, l.lowWater = 0, 0, 0, 0
	l.level = min(l.level, p.Units())
}

// Take decides one request.
func (l *Lease) Take(now int64) Outcome {
	l.arrived = min(l.arrived, math.MaxInt32-1) + 1
	l.takenAt = now
	return l.Retry(now)
}

// Retry is Take for a request that Take has counted already.
func (l *Lease) Retry(now int64) Outcome {
	l.trim(now)
	switch {
	case l.granted > 0 && now < l.grantedUntil:
		l.granted--
		return Granted
	case l.balance > 0:
		l.balance--
		return Granted
	case l.refuses(now):
		return Denied
	}
	return NeedRemote
}

// refuses reports whether requests are refused without a call. After askAgain a request asks
// the bucket all the same: its state may have been repaired, or lost.
func (l *Lease) refuses(now int64) bool { return now < l.deny && now-l.at < askAgain }

const askAgain = 15_000_000 // microseconds since the last answer

// Due reports whether a call should be sent although no request waits: few tokens are left.
func (l *Lease) Due(now int64) bool {
	return !l.inFlight && l.balance < l.lowWater && !l.refuses(now)
}

// Denies reports whether Take would refuse.
func (l *Lease) Denies(now int64) bool { return l.refuses(now) && l.Holds(now) == 0 }

// RetryIn is how many microseconds until there may be a token, while Take refuses.
func (l *Lease) RetryIn(now int64) int64 { return l.deny - now }

// Holds is how many tokens may be spent without a call.
func (l *Lease) Holds(now int64) int64 {
	l.trim(now)
	if now < l.grantedUntil {
		return int64(l.balance + l.granted)
	}
	return int64(l.balance)
}

// Refund takes back one token that Take granted, or with fallback, that TakeFallback did. It
// reports whether the token has to go to the bucket with the next call.
func (l *Lease) Refund(now int64, fallback bool) (remote bool) {
	l.trim(now)
	if !fallback && l.balance < l.cur+l.prev {
		l.balance++
		return false
	}
	if l.fallback != nil && l.fallback.debt >= Token {
		l.fallback.level += Token
		l.fallback.debt -= Token
		return false
	}
	l.returned++
	l.deny = 0
	return true
}

// levelAt is the bucket's level at now, if no other node has taken tokens since the last
// answer: it has been refilled up to burst - held. Before the first answer the bucket counts as
// full, as an absent bucket is.
func (l *Lease) levelAt(now int64) int64 {
	return max(l.level, min(l.room(), l.level+l.Policy.Earned(max(0, now-l.at))))
}

// room is the level up to which the bucket refills while nodes hold tokens of it.
func (l *Lease) room() int64 { return max(0, l.Policy.Burst-int64(l.held)) * Token }

// Status is what a response says about a bucket.
type Status struct {
	Remaining int64         // tokens that this node can give out
	RetryIn   time.Duration // when refused: the time until there may be a token
	ResetIn   time.Duration // the time until there is one more token; 0 when the bucket is full
}

// Status returns the status at now for a request that is not refused. It subtracts what
// other nodes may have taken since the last answer: half more than they usually take, and
// more the older that answer is.
func (l *Lease) Status(now int64) Status {
	level := float64(l.levelAt(now))
	if age := float64(now - l.at); l.peers > 0 && age > 0 {
		perOwn := 1.5 * l.others / max(1, l.demand.own)
		if l.demand.recent < 4*sparse { // too few requests to compare
			perOwn = max(perOwn, float32(l.peers))
		}
		taken := max(1.5*float64(l.others)*age/DemandSpan, float64(l.arrived)*float64(perOwn))
		level = max(0, level-taken*Token) * viewLife / (viewLife + age)
	}
	return l.statusOf(int64(level) + (l.Holds(now)+int64(l.returned))*Token)
}

// FallbackStatus returns the status while this node decides without Redis.
func (l *Lease) FallbackStatus(now int64, f *Fleet) Status {
	if l.fallback == nil {
		return l.Status(now)
	}
	return l.statusOf(l.refillFallback(now, f).level)
}

// viewLife is the age at which half of a known level is shown, in microseconds.
const viewLife = 4_000_000

// statusOf returns the status of a bucket that contains level micro-tokens.
func (l *Lease) statusOf(level int64) Status {
	p := &l.Policy
	level = max(0, min(p.Units(), level))
	s := Status{Remaining: level / Token}
	if p.Rate > 0 && level < p.Units() {
		s.ResetIn = micros(p.TimeFor(Token - level%Token))
	}
	return s
}

// Refused returns the status for a request that is refused: there is no token for
// retryIn microseconds.
func Refused(retryIn int64) Status {
	retry := micros(max(1, retryIn))
	return Status{RetryIn: retry, ResetIn: retry}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Owes reports whether tokens were spent here that the bucket may not have debited yet.
func (l *Lease) Owes() bool { return l.debt() > 0 || l.paying }

// ledger counts the tokens that the bucket holds for this node, by slice.
//
// Invariants, once trimmed: 0 <= balance <= cur + prev; cur and prev are at most
// what the bucket holds for this node, of those slices; a token of the balance is
// dropped before its slice ages out in the bucket.
type ledger struct {
	slice     int32 // the bucket's number of cur's slice
	cur, prev int32 // tokens leased in that slice and in the one before, including spent ones
	balance   int32 // of these, the tokens not yet spent; the oldest are spent first
	end       int64 // cur may be spent before this time, and prev until one Slice earlier
}

// leaseSlack is the time between the moment when a node stops spending a lease and the
// moment when the bucket no longer counts it, in microseconds. It covers three errors:
// a clock that runs one percent slower than Redis', a request that holds one token while
// it waits for another, and a time that was read a while before it is used (see
// Limiter.Take).
const leaseSlack = 400_000

// trim drops the tokens that may no longer be spent.
func (g *ledger) trim(now int64) {
	if g.prev > 0 && now >= g.end-Slice {
		g.prev, g.balance = 0, min(g.balance, g.cur)
	}
	if g.cur > 0 && now >= g.end {
		g.cur, g.balance = 0, 0
	}
}

// add adds tokens that a call leased. Their end is counted from the time when the call
// was sent. The bucket counts it from a later time, so it holds the tokens longer. If
// the slice is neither the ledger's nor the next, the bucket was lost, or no longer
// counts the older leases: the ledger drops its tokens.
func (g *ledger) add(tokens int64, r *Reply, sent int64) {
	switch slice := int32(r.Slice); slice {
	case g.slice:
	case g.slice + 1:
		g.prev, g.cur, g.balance = g.cur, 0, min(g.balance, g.cur)
	default:
		g.cur, g.prev, g.balance = 0, 0, 0
	}
	g.slice = int32(r.Slice)
	g.cur += int32(tokens)
	g.balance += int32(tokens)
	g.end = sent + r.Lasts - leaseSlack
}

// report moves the spent tokens from the ledger into the call, so that the bucket no
// longer counts them as held. With giveBack, it returns the unspent tokens, too.
func (g *ledger) report(c *Call, giveBack bool) {
	used := g.cur + g.prev - g.balance
	if giveBack {
		c.Returned += int64(g.balance)
		used += g.balance
		g.balance = 0
	}
	rel1 := min(g.prev, used)
	g.prev -= rel1
	g.cur -= used - rel1
	c.Slice, c.ReleasedNow, c.ReleasedBefore = int64(g.slice), int64(used-rel1), int64(rel1)
}
