// Package lease is what a node does with a token bucket that a fleet shares. It
// is pure: no I/O, no clock, no lock. Times are microseconds and passed in.
//
//	bucket.go    the shared bucket, the twin of token_bucket.lua
//	lease.go     a node's part of it: Take, and what headers show
//	call.go      a visit to the bucket: Begin, then Complete or Fail
//	ledger.go    which tokens the node holds, and until when
//	demand.go    how many it asks for
//	fallback.go  what it decides while the bucket cannot be asked
//
// What is leased counts in the bucket until it is reported spent or ages
// (Level + Held <= Burst). So over any span of t seconds at most burst + rate*t
// requests are admitted, counted when they are admitted.
package lease

import (
	"math"
	"sync/atomic"
)

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

// Verdict is what a lease says to a request.
type Verdict uint8

const (
	Ask     Verdict = iota // the shared bucket must be asked: wait for it
	Granted                // admitted
	Denied                 // there is known to be no token yet
)

// never is before every time.
const never = math.MinInt64 / 2

// Lease is one node's part of one bucket: what it holds and what it knows of the
// rest.
//
//	Take ── balance ────────────────────────────────> Granted
//	  ├─ deny ──────────────────────────────────────> Denied
//	  └─ Ask ── Begin ══ Bucket.Visit ══ Complete ──> Take again
//	                ╚═ Fail ────────────────────────> TakeAlone (fallback, a debt)
//
// Invariant: at most one call is in flight.
type Lease struct {
	policy Policy
	View   // the bucket as it was last seen
	ledger

	looseEnd int64 // until when loose may be spent
	deny     int64 // before this time there is no token
	takenAt  int64 // the last Take
	since    int64 // when the call in flight was begun, or the last one failed

	demand demand
	others float32 // requests at other nodes for each one here
	rate   float32 // and in a microsecond
	own    float32 // requests of the last demandSpan, decaying
	unmet  float32 // those that had no token yet: see Bucket.grant

	loose   int32 // tokens granted to those who waited
	ret     int32 // tokens to give back that are in no ledger
	arrived int32 // requests since the last call
	low     int32 // a balance below it starts a call
	backoff int32 // how long an empty bucket was not visited

	inFlight bool
	closed   bool      // what is held goes back, for the policy is another one
	owner    bool      // of the bucket, when it was last seen
	alone    *fallback // not nil while tokens were spent that the bucket does not know of
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
		v.Level = max(v.Level, min(room, v.Level+p.earned(now-v.At)))
		v.At = now
	}
}

// New makes a lease that holds nothing.
func New(p Policy, now int64) *Lease {
	l := new(Lease)
	l.Init(p, now)
	return l
}

// Init makes the zero Lease one that holds nothing.
func (l *Lease) Init(p Policy, now int64) {
	l.policy, l.demand.at, l.takenAt = p, now, now
	l.At, l.since = never, never
}

// Policy in force at this node.
func (l *Lease) Policy() Policy { return l.policy }

// SetPolicy puts another policy in force: what is held goes back first.
func (l *Lease) SetPolicy(p Policy) {
	l.policy = p
	l.closed = l.cur+l.prev > 0
	l.loose, l.deny, l.low = 0, 0, 0
	l.Level = min(l.Level, p.units())
}

// Take decides one request.
func (l *Lease) Take(now int64) Verdict {
	l.arrived = min(l.arrived, math.MaxInt32-1) + 1
	l.takenAt = now
	return l.Retry(now)
}

// Retry is Take for a request that has been counted.
func (l *Lease) Retry(now int64) Verdict {
	switch {
	case l.closed:
		return Ask
	case l.loose > 0 && now < l.looseEnd:
		l.loose--
		return Granted
	}
	if l.trim(now); l.balance > 0 {
		l.balance--
		return Granted
	}
	if now < l.deny {
		return Denied
	}
	return Ask
}

// Due reports whether a call should be sent although nobody waits for it.
func (l *Lease) Due(now int64) bool {
	return !l.inFlight && (l.closed || l.balance < l.low && now >= l.deny)
}

// Denies reports whether Take would refuse.
func (l *Lease) Denies(now int64) bool { return now < l.deny && l.Holds(now) == 0 }

// RetryIn is how long Take refuses.
func (l *Lease) RetryIn(now int64) int64 { return max(1, l.deny-now) }

// Unanswered reports whether a request should be decided alone, without waiting:
// the call in flight has taken longer than anybody waits, or the last one failed a
// moment ago.
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
	if now < l.looseEnd {
		return int64(l.balance + l.loose)
	}
	return int64(l.balance)
}

// Refund takes one token back that Take granted. travels: the bucket must be told
// with the next call, urgent: and at once, for it is a small one. alone: it is one
// of TakeAlone.
func (l *Lease) Refund(now int64, alone bool) (travels, urgent bool) {
	l.trim(now)
	switch {
	case alone && l.refundAlone():
		return false, false
	case !alone && !l.closed && l.balance < l.cur+l.prev:
		l.balance++
		return false, false
	case l.refundAlone():
		return false, false
	}
	l.ret++
	l.deny = 0
	return true, !l.policy.leased()
}

// levelAt is what the bucket contains at now, if no other node took any since it
// was seen. One never seen is full, as an absent one is.
func (l *Lease) levelAt(now int64) int64 {
	if l.At == never {
		return l.policy.units()
	}
	v := l.View
	v.Refill(&l.policy, now)
	return v.Level
}

// Status is what headers show of a bucket. Times are microseconds.
type Status struct {
	Remaining int64 // tokens that may be had at this node
	Next      int64 // until there is one more; 0 when the bucket is full
	Full      int64 // until the bucket is full
}

// Status at now. What other nodes may have taken since the bucket was seen is not
// shown: twice what they take as a rule, and more the older the view is. alone:
// this node decides without Redis.
func (l *Lease) Status(now int64, alone bool) Status {
	level := (l.Holds(now) + int64(l.ret)) * Token
	switch age := float64(now - l.At); {
	case alone && l.alone != nil:
		level = l.alone.level
	case l.At == never:
		level = l.policy.units()
	case l.shared && age > 0:
		taken := 2 * max(float64(l.arrived)*float64(l.others), age*float64(l.rate))
		level += int64(max(0, float64(l.levelAt(now))-taken*Token) * viewLife / (viewLife + age))
	default:
		level += l.levelAt(now)
	}
	return StatusOf(&l.policy, level)
}

// viewLife is the age at which half of a level that was seen is shown.
const viewLife = 2_000_000

// StatusOf a bucket that contains so many micro-tokens.
func StatusOf(p *Policy, level int64) Status {
	level = max(0, min(p.units(), level))
	s := Status{Remaining: level / Token}
	if p.Rate > 0 && level < p.units() {
		s.Next = p.timeFor(Token - level%Token)
		s.Full = p.timeFor(p.units() - level)
	}
	return s
}

// Forgettable reports whether the lease is as good as a new one.
func (l *Lease) Forgettable(now int64) bool {
	l.trim(now)
	return l.cur+l.prev+l.ret == 0 && l.alone == nil && !l.inFlight && now >= l.deny && now-l.takenAt >= Epoch
}
