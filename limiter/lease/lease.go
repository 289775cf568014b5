// Package lease is a node's part of a token bucket that a fleet shares. The node leases
// tokens from the bucket and spends them without asking it. The package is pure: no I/O,
// no clock, no lock. Times are microseconds and passed in.
//
//	lease.go  rate and burst, and a node's part of the bucket: Take, the status for headers, the next
//	          call (Begin, then Complete or Fail), and decisions while the bucket is unreachable
//	call.go   what a call asks for and what it answers, and what a node knows of its fleet
//
// The bucket itself is token_bucket.lua. It counts leased tokens as held until a node
// reports them spent or they age out, and level + held <= burst.
package lease

import (
	"fmt"
	"math"
	"time"
)

// Token is one token in micro-tokens, the unit of every level and rate. A refill
// rounds down to a micro-token. So an error is less than a millionth of a token in each
// call, and never admits more.
const Token = 1_000_000

// MaxUnits bounds a full bucket and a rate, in micro-tokens. The sum of two such values
// is at most 2^53, so the script's doubles hold it exactly, as Go's int64 does.
const MaxUnits = 1 << 52

// MaxTokens bounds a burst.
const MaxTokens = MaxUnits / Token

// Policy is the rate and burst of a bucket. The zero Policy admits nothing,
// as rate 0 does.
type Policy struct {
	Rate  int64 // micro-tokens a second; 0 = blocked
	Burst int64 // tokens in a full bucket

	// Version orders the policies of one bucket over all nodes (0 to 2^53). So a node
	// that has not read a change yet cannot undo it. If the new policy's version is not
	// higher (0, or the database was restored), the change takes effect when no node
	// has used the old policy for 10 to 20 s.
	Version int64
}

// NewPolicy makes a policy of a rate in tokens a second and a burst in tokens.
// A rate that is not a whole number of micro-tokens is rounded down, but not below
// one micro-token.
func NewPolicy(rate float64, burst int64) (Policy, error) {
	switch {
	case math.IsNaN(rate) || math.IsInf(rate, 0):
		return Policy{}, fmt.Errorf("limiter: rate %v is not finite", rate)
	case rate < 0:
		return Policy{}, fmt.Errorf("limiter: rate %v is negative", rate)
	case burst < 1:
		return Policy{}, fmt.Errorf("limiter: burst %d is below 1", burst)
	case burst > MaxTokens:
		return Policy{}, fmt.Errorf("limiter: burst %d is above %d", burst, int64(MaxTokens))
	}
	p := Policy{Burst: burst}
	switch {
	case rate >= MaxTokens:
		p.Rate = MaxUnits
	case IsWhole(rate):
		p.Rate = int64(math.Round(rate * Token))
	default:
		p.Rate = max(1, int64(rate*Token))
	}
	return p, nil
}

// Blocked reports whether the bucket admits nothing.
func (p *Policy) Blocked() bool { return p.Rate == 0 }

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

// IsWhole reports whether a rate is a whole number of micro-tokens a second, to the
// precision of a float.
func IsWhole(rate float64) bool { return math.Round(rate*Token)/Token == rate }

// Leased reports whether nodes lease tokens. A lease of a small burst would be most of
// the bucket, so there each request asks Redis.
func (p *Policy) Leased() bool { return p.Burst >= minLeasedBurst }

const minLeasedBurst = 16 // tokens; the same in the script

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
// At most one call is in flight: the caller sees to that.
type Lease struct {
	Policy Policy // in force at this node: see SetPolicy
	ledger        // the tokens that this node holds

	// The bucket as of the last answer.
	level, at int64   // it contained so many micro-tokens at that time
	held      int32   // tokens that nodes hold
	others    float32 // requests at other nodes in the last DemandSpan

	grantedUntil int64 // granted may be spent before this time
	deny         int64 // before this time there is no token, as of the last answer: see refuses
	takenAt      int64 // when Take was last called

	demand   demand
	unserved float32 // requests at this node that had no token yet, while more is demanded than the rate brings
	chance   float32 // that a request gets a token, while tokens are scarce; 0 = they are not

	granted  int32 // tokens granted to waiting requests
	returned int32 // tokens to give back that are not in the ledger
	arrived  int32 // requests since the last call
	lowWater int32 // a balance below it starts a call

	fallback *fallback // not nil = tokens may have been spent that the bucket does not know of
}

// fallback is a node's part of a bucket while Redis is unreachable. It begins with the
// node's part of the last known level. The node's part of the rate refills it as soon as
// the other nodes withhold that part. So all nodes together admit what the bucket would
// have admitted, and at most one burst more.
//
// The debt is what was spent here and the bucket must debit. It is at most what is missing
// from a full part. So after an outage of an hour the debt is what is missing now, and not
// all requests of that hour.
//
// A fallback is kept when Redis returns for a short time, so that many short outages
// admit no more than one long outage. A level that Redis reports in between can only
// lower it.
type fallback struct {
	level, debt int64 // micro-tokens
	at          int64 // level is refilled up to this time
	seen        int64 // the time of the newest level of the bucket that was applied to it
	paying      bool  // the call in flight debits a debt
}

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
	return l.balance < l.lowWater && !l.refuses(now)
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

// Begin fills in c, the next call to the bucket, for so many waiting requests. It reports false
// if no call is needed; else Complete or Fail must follow. With giveBack, the call returns all
// held tokens.
func (l *Lease) Begin(c *Call, waiting, now int64, f *Fleet, giveBack bool) bool {
	if l.Policy.Blocked() {
		return false
	}
	l.trim(now)
	giveBack = giveBack || waiting == 0 && l.idle(now)
	*c = Call{Policy: l.Policy, Need: waiting, Returned: int64(l.returned), Nodes: f.Nodes, Silent: f.Silent}
	l.report(c, giveBack)
	if l.fallback != nil {
		c.Debt = l.debt()
		l.fallback.debt, l.fallback.paying = 0, c.Debt > 0
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
	l.returned = 0
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
		l.fallback.paying = false
		l.granted -= int32(l.payDebt(granted))
		l.balance -= int32(l.payDebt(min(leased, int64(l.balance))))
	}
	// The bucket answered before now. So the level is too low by what the rate
	// has added since, never too high.
	l.level, l.at = c.Level, now
	l.held = int32(min(c.Reply.Held, math.MaxInt32))
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
	if l.fallback != nil {
		l.fallback.debt, l.fallback.paying = l.fallback.debt+c.Debt*Token, false
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

// Holdings is what a node has of a limit.
type Holdings struct {
	Tokens int64 // may be spent without a call; below 0 = so many were spent above what was given
	Owes   bool  // tokens were spent here that Redis may not have debited yet
	Active bool  // Inspect must be called periodically
	Due    bool  // a call should be sent although no request waits
}

// Inspect ends a fallback that is over, and returns what the lease has. A call is due if the
// lease is idle, or has a debt or tokens to give back.
func (l *Lease) Inspect(now int64, f *Fleet) Holdings {
	if l.fallback != nil && !l.fallback.paying && l.refillFallback(now, f).level >= l.part(f) {
		l.fallback = nil // a new one would be the same
	}
	h := Holdings{Tokens: l.Holds(now), Owes: l.debt() > 0 || l.fallback != nil && l.fallback.paying}
	held := l.cur+l.prev > 0
	h.Active = held || l.returned > 0 || l.fallback != nil
	h.Due = l.debt() > 0 || l.returned > 0 || held && l.idle(now)
	return h
}

// part is this node's part of a full bucket, but at least a token.
func (l *Lease) part(f *Fleet) int64 { return max(Token, l.Policy.Units()/f.parts()) }

// TakeFallback decides a request without Redis. If it refuses, wait is how many microseconds until
// there may be a token. It refuses if the burst is smaller than the fleet, because this node has
// no part of it then. With admit, it admits the request even without a token.
func (l *Lease) TakeFallback(now int64, f *Fleet, admit bool) (ok bool, wait int64) {
	if l.Policy.Burst < f.Nodes && !f.Cold && !admit {
		return false, MissingAfter
	}
	a := l.refillFallback(now, f)
	if a.level < Token && !admit {
		return false, l.Policy.TimeFor((Token - a.level) * f.parts())
	}
	spent := min(Token, a.level)
	a.level -= spent
	a.debt += spent
	return true, 0
}

// refillFallback refills the fallback up to now, and makes it if there is none.
func (l *Lease) refillFallback(now int64, f *Fleet) *fallback {
	full, parts := l.part(f), f.parts()
	if f.Nodes > 1 && now > f.LastPresentAt { // until the others withhold this node's part, they may spend it
		now = max(f.LastPresentAt, now-MissingAfter)
	}
	a := l.fallback
	if a == nil {
		a = &fallback{level: full, at: now, seen: never}
		l.fallback = a
	}
	if now >= a.at {
		earned := math.Floor(float64(now-a.at) * float64(l.Policy.Rate) / 1e6 / float64(parts))
		a.level = min(full, a.level+int64(min(float64(full), earned)))
		a.debt = min(a.debt, full-a.level)
		a.at = now
	}
	if l.at > a.seen {
		a.seen = l.at
		a.level = min(a.level, max(0, l.levelAt(now))/parts)
	}
	return a
}

// debt is how many tokens the bucket must debit, rounded up.
func (l *Lease) debt() int64 {
	if l.fallback == nil {
		return 0
	}
	return (l.fallback.debt + Token - 1) / Token
}

// payDebt pays the fallback's debt with at most so many tokens that the bucket gave this node,
// and returns how many it took. There must be a fallback.
func (l *Lease) payDebt(tokens int64) int64 {
	paid := max(0, min(tokens, l.debt()))
	l.fallback.debt = max(0, l.fallback.debt-paid*Token)
	return paid
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
// more the older that answer is. With offline, this node decides without Redis.
func (l *Lease) Status(now int64, f *Fleet, offline bool) Status {
	if offline && l.fallback != nil {
		return l.statusOf(l.refillFallback(now, f).level)
	}
	level := float64(l.levelAt(now))
	if age := float64(now - l.at); f.Nodes > 1 && l.at > never && age > 0 {
		perOwn := 1.5 * l.others / max(1, l.demand.own)
		if l.demand.recent < 4*sparse { // too few requests to compare
			perOwn = max(perOwn, float32(f.Nodes-1))
		}
		taken := max(1.5*float64(l.others)*age/DemandSpan, float64(l.arrived)*float64(perOwn))
		level = max(0, level-taken*Token) * viewLife / (viewLife + age)
	}
	return l.statusOf(int64(level) + (l.Holds(now)+int64(l.returned))*Token)
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
