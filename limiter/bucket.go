package limiter

import "math/bits"

// clockSlack: a clock this far behind the bucket's is taken for jitter between
// readings, not for a step (microseconds).
const clockSlack = 1_000_000

// state is a token bucket, and this file its whole arithmetic: pure, exact, the
// model of token_bucket.lua. A test holds the two equal, state included.
//
// Invariants: 0 <= level <= policy.units(), and ts never lies more than
// clockSlack after the latest reading, so no microsecond refills twice.
type state struct {
	level  int64 // units in the bucket at ts
	ts     int64 // microseconds: up to here the bucket has been refilled
	policy Policy
}

// call is one visit to one bucket: what is asked of it and its answer.
type call struct {
	bucket *Bucket
	policy Policy // the caller's
	need   int64  // tokens to take, as many as there are
	ret    int64  // tokens to give back
	debt   int64  // tokens spent elsewhere, to be debited
	reply
}

// reply tells how the bucket stands after a visit.
type reply struct {
	granted   int64 // of need
	level     int64 // units, in the terms of the policy in force
	remaining int64 // whole tokens
	wait      int64 // microseconds until there is a token; 0 when there is one
	full      int64 // microseconds until the bucket is full
	version   int64 // of the policy in force: newer than the caller's, perhaps
	now       int64 // the store's time of the visit, microseconds
}

// fullState is what an absent bucket stands for.
func fullState(p Policy, now int64) state {
	return state{level: p.units(), ts: now, policy: p}
}

// visit carries out c at time now and reports whether the state is another one
// than before. A refused call changes nothing: refilling later comes to the
// same level, so nothing need be stored.
//
// The order matters: time that has passed counts under the policy it passed
// under; what is given back cannot lift the bucket over its burst; a debit
// comes before the grant, or tokens would be spent twice.
func (s *state) visit(c *call, now int64) (changed bool) {
	before := *s
	stepped := !s.refill(now)
	rescaled := c.policy.Version >= s.policy.Version && (c.policy.Version > s.policy.Version || !c.policy.sameLimits(s.policy))
	if rescaled {
		s.rescale(c.policy)
	}
	s.giveBack(c.ret)
	s.debit(c.debt)
	c.reply = reply{version: s.policy.Version, now: now}
	if !stepped {
		c.granted = s.take(c.need)
	}
	c.level = s.level
	c.remaining = s.level / s.policy.p
	c.wait = s.wait()
	c.full = s.untilFull()
	if stepped || rescaled || c.granted > 0 || c.ret > 0 || c.debt > 0 {
		return true
	}
	*s = before
	return false
}

// refill adds what the time since ts has brought, never above the burst. It
// reports false where the clock has stepped back: the bucket then starts
// counting anew from now, and this visit is granted nothing.
func (s *state) refill(now int64) bool {
	if now < s.ts {
		if s.ts-now > clockSlack {
			s.ts = now
			return false
		}
		return true
	}
	// Comparing before multiplying: the product may not fit 64 bits.
	if missing := s.policy.units() - s.level; now-s.ts >= ceilDiv(missing, s.policy.r) {
		s.level = s.policy.units()
	} else {
		s.level += (now - s.ts) * s.policy.r
	}
	s.ts = now
	return true
}

// rescale puts another policy in force and keeps the filled share, rounded
// down: a change of policy never makes a token out of nothing.
func (s *state) rescale(to Policy) {
	high, low := bits.Mul64(uint64(s.level), uint64(to.units()))
	level, _ := bits.Div64(high, low, uint64(s.policy.units())) // <= to.units(): fits
	s.level, s.policy = int64(level), to
}

// giveBack returns tokens, never above the burst.
func (s *state) giveBack(tokens int64) {
	if tokens > (s.policy.units()-s.level)/s.policy.p {
		s.level = s.policy.units()
		return
	}
	s.level += tokens * s.policy.p
}

// debit removes tokens that were spent elsewhere, down to empty.
func (s *state) debit(tokens int64) {
	if tokens > s.level/s.policy.p {
		s.level = 0
		return
	}
	s.level -= tokens * s.policy.p
}

// take removes up to need tokens and returns how many.
func (s *state) take(need int64) int64 {
	granted := min(need, s.level/s.policy.p)
	s.level -= granted * s.policy.p
	return granted
}

// wait is the time in microseconds until there is a whole token.
func (s *state) wait() int64 {
	if s.level >= s.policy.p {
		return 0
	}
	return ceilDiv(s.policy.p-s.level, s.policy.r)
}

// untilFull is the time in microseconds until the bucket is full.
func (s *state) untilFull() int64 { return ceilDiv(s.policy.units()-s.level, s.policy.r) }
