// Package lease is what a node does with a token bucket that a fleet shares. It
// is pure: no I/O, no clock, no lock. Times are microseconds and passed in.
//
//	lease.go     a node's part of the bucket: Take, and what headers show
//	call.go      a visit to the bucket: Begin, then Complete or Fail
//	demand.go    how many tokens it asks for
//	fallback.go  what it decides while the bucket cannot be asked
//
// The bucket itself is token_bucket.lua. What is leased counts in it until it is
// reported spent or ages (level + held <= burst). So over any span of t seconds at
// most burst + rate*t requests are admitted, counted when they are admitted.
package lease

import (
	"math"
	"time"
)

// Outcome is what a lease says to a request.
type Outcome uint8

const (
	NeedRemote Outcome = iota // the shared bucket decides: wait for it
	Granted                   // admitted
	Denied                    // there is known to be no token yet
)

// never is before every time.
const never = math.MinInt64 / 2

// Lease is one node's part of one bucket: what it holds and what it knows of the
// rest.
//
//	Take ── balance ────────────────────────────────> Granted
//	  ├─ deny ──────────────────────────────────────> Denied
//	  └─ NeedRemote ── Begin ══ script ══ Complete ─> Take again
//	                     ╚═ Fail ───────────────────> TakeFallback (a debt)
//
// Invariant: at most one call is in flight.
type Lease struct {
	Policy Policy // in force at this node: see SetPolicy
	View          // the bucket as it was last seen
	ledger

	grantedUntil int64 // until when granted may be spent
	deny         int64 // before this time there is no token
	takenAt      int64 // the last Take
	since        int64 // when the call in flight was begun, or the last one failed

	demand demand
	others float32 // requests at other nodes for each one here
	rate   float32 // and in a microsecond
	own    float32 // requests of the last demand span, decaying
	unmet  float32 // those that had no token yet: see Call.Entitled

	granted int32 // tokens granted to those who waited
	ret     int32 // tokens to give back that are in no ledger
	arrived int32 // requests since the last call
	low     int32 // a balance below it starts a call
	backoff int32 // how long an empty bucket was not visited

	inFlight bool
	closed   bool      // what is held goes back, for the policy is another one
	owner    bool      // of the bucket, when it was last seen
	fallback *fallback // not nil while tokens were spent that the bucket does not know of
}

// View is a bucket as it is seen: so many micro-tokens at that time, which rise to
// room. Without Redis, it is the bucket itself.
type View struct {
	Level, At int64
	held      int32 // tokens that nodes hold
	shared    bool  // there are other nodes
}

// Refill brings the view to now.
func (v *View) Refill(p *Policy, now int64) {
	if now > v.At {
		room := max(0, p.Burst-int64(v.held)) * Token
		v.Level = max(v.Level, min(room, v.Level+p.Earned(now-v.At)))
		v.At = now
	}
}

// Init makes the zero Lease one that holds nothing.
func (l *Lease) Init(p Policy, now int64) {
	l.Policy, l.demand.at, l.takenAt = p, now, now
	l.At, l.since = never, never
}

// SetPolicy puts another policy in force: what is held goes back first.
func (l *Lease) SetPolicy(p Policy) {
	l.Policy = p
	l.closed = l.cur+l.prev > 0
	l.granted, l.deny, l.low = 0, 0, 0
	l.Level = min(l.Level, p.Units())
}

// Take decides one request.
func (l *Lease) Take(now int64) Outcome {
	l.arrived = min(l.arrived, math.MaxInt32-1) + 1
	l.takenAt = now
	return l.Retry(now)
}

// Retry is Take for a request that has been counted.
func (l *Lease) Retry(now int64) Outcome {
	switch {
	case l.closed:
		return NeedRemote
	case l.granted > 0 && now < l.grantedUntil:
		l.granted--
		return Granted
	}
	if l.trim(now); l.balance > 0 {
		l.balance--
		return Granted
	}
	if now < l.deny {
		return Denied
	}
	return NeedRemote
}

// Due reports whether a call should be sent although nobody waits for it.
func (l *Lease) Due(now int64) bool {
	return !l.inFlight && (l.closed || l.balance < l.low && now >= l.deny)
}

// Denies reports whether Take would refuse.
func (l *Lease) Denies(now int64) bool { return now < l.deny && l.Holds(now) == 0 }

// RetryIn is how long Take refuses.
func (l *Lease) RetryIn(now int64) int64 { return l.deny - now }

// Unanswered reports whether a request should not wait for the bucket: the call in
// flight has taken longer than anybody waits, or the last one failed a moment ago.
func (l *Lease) Unanswered(now int64, f *Fleet) bool {
	if l.inFlight {
		return now-l.since >= f.Link.Wait()
	}
	return now-l.since < failedFor
}

// failedFor is how long a bucket is not asked after a call of it failed.
const failedFor = 100_000

// Holds is how many tokens may be spent without asking.
func (l *Lease) Holds(now int64) int64 {
	if l.closed {
		return 0
	}
	l.trim(now)
	if now < l.grantedUntil {
		return int64(l.balance + l.granted)
	}
	return int64(l.balance)
}

// Refund takes one token back that Take granted, or with fallback TakeFallback. It
// reports whether the token has to go to the bucket with the next call.
func (l *Lease) Refund(now int64, fallback bool) (remote bool) {
	l.trim(now)
	if !fallback && !l.closed && l.balance < l.cur+l.prev {
		l.balance++
		return false
	}
	if l.refundFallback() {
		return false
	}
	l.ret++
	l.deny = 0
	return true
}

// levelAt is what the bucket contains at now, if no other node took any since it
// was seen. One never seen is full, as an absent one is.
func (l *Lease) levelAt(now int64) int64 {
	if l.At == never {
		return l.Policy.Units()
	}
	v := l.View
	v.Refill(&l.Policy, now)
	return v.Level
}

// Status is what a response shows of a bucket.
type Status struct {
	Remaining int64         // tokens that may be had at this node
	RetryIn   time.Duration // when refused: the time until there may be a token
	ResetIn   time.Duration // the time until there is one token more; 0 when the bucket is full
	FullIn    time.Duration // the time until the bucket is full
}

// Status at now, of a request that is not refused. What other nodes may have taken since the bucket was seen is not
// shown: twice what they take as a rule, and more the older the view is. fallback:
// this node decides without Redis.
func (l *Lease) Status(now int64, fallback bool) Status {
	level := (l.Holds(now) + int64(l.ret)) * Token
	switch age := float64(now - l.At); {
	case fallback && l.fallback != nil:
		level = l.fallback.level
	case l.At == never:
		level = l.Policy.Units()
	case l.shared && age > 0:
		taken := 2 * max(float64(l.arrived)*float64(l.others), age*float64(l.rate))
		level += int64(max(0, float64(l.levelAt(now))-taken*Token) * viewLife / (viewLife + age))
	default:
		level += l.levelAt(now)
	}
	return StatusOf(&l.Policy, level)
}

// viewLife is the age at which half of a level that was seen is shown.
const viewLife = 2_000_000

// StatusOf a bucket that contains so many micro-tokens.
func StatusOf(p *Policy, level int64) Status {
	level = max(0, min(p.Units(), level))
	s := Status{Remaining: level / Token}
	if p.Rate > 0 && level < p.Units() {
		s.ResetIn = micros(p.TimeFor(Token - level%Token))
		s.FullIn = micros(p.TimeFor(p.Units() - level))
	}
	return s
}

// Refused is the status where there is no token for so many microseconds.
func (s Status) Refused(retryIn int64) Status {
	retry := micros(max(1, retryIn))
	return Status{RetryIn: retry, ResetIn: retry, FullIn: max(s.FullIn, retry)}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Forgettable reports whether the lease is as good as a new one.
func (l *Lease) Forgettable(now int64) bool {
	l.trim(now)
	return l.cur+l.prev+l.ret == 0 && l.fallback == nil && !l.inFlight && now >= l.deny && now-l.takenAt >= Epoch
}

// ledger is what the bucket holds for this node, by epoch.
//
// Invariants, once trimmed: 0 <= balance <= cur + prev; cur and prev are at most
// what the bucket holds for this node, of those epochs; a token of the balance is
// dropped before its epoch ages out in the bucket.
type ledger struct {
	epoch     int32 // of cur, as the bucket counts them
	cur, prev int32 // tokens leased in it, and in the one before, spent ones included
	balance   int32 // those that may still be spent; the oldest are spent first
	end       int64 // when those of cur must be spent; those of prev an Epoch before
}

// leaseSlack is how long before a lease ages in the bucket its node stops
// spending it. It covers a clock that runs a hundredth slower than Redis', the
// wait of a request that holds one token while it waits for another, and a moment
// read a while before it is acted upon (see Limiter.Take).
const leaseSlack = 400_000

// trim drops what may be spent no longer.
func (g *ledger) trim(now int64) {
	if g.prev > 0 && now >= g.end-Epoch {
		g.prev, g.balance = 0, min(g.balance, g.cur)
	}
	if g.cur > 0 && now >= g.end {
		g.cur, g.balance = 0, 0
	}
}

// add adds tokens that were leased by a call sent at sent: their epoch and the
// next one end later than that in the bucket, which was visited after. A bucket
// that jumps to another epoch is another one, or has forgotten what was leased
// longer ago: the ledger is dropped.
func (g *ledger) add(tokens int64, r *Reply, sent int64) {
	switch epoch := int32(r.Epoch); epoch {
	case g.epoch:
	case g.epoch + 1:
		g.prev, g.cur, g.balance = g.cur, 0, min(g.balance, g.cur)
	default:
		g.cur, g.prev, g.balance = 0, 0, 0
	}
	g.epoch = int32(r.Epoch)
	g.cur += int32(tokens)
	g.balance += int32(tokens)
	g.end = sent + r.Lasts - leaseSlack
}

// report moves what was spent, and with all the balance as well, into the call
// that tells the bucket that it is held no longer.
func (g *ledger) report(c *Call, all bool) {
	used := g.cur + g.prev - g.balance
	if all {
		c.Ret += int64(g.balance)
		used += g.balance
		g.balance = 0
	}
	rel1 := min(g.prev, used)
	g.prev -= rel1
	g.cur -= used - rel1
	c.Epoch, c.Rel0, c.Rel1 = int64(g.epoch), int64(used-rel1), int64(rel1)
}
