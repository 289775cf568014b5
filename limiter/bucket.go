package limiter

import "math/bits"

const (
	// clockSlack: a clock this far behind the bucket's is taken for jitter
	// between readings, not for a step (microseconds).
	clockSlack = 1_000_000

	// leastLeased is the smallest burst that is leased from. Below it a lease
	// would be most of the bucket, so every request asks for itself.
	leastLeased = 16
)

// state is a token bucket, and this file its whole arithmetic: pure, exact, the
// model of token_bucket.lua. A test holds the two equal, state included.
//
// Invariants: level + (held+prev)*p <= Burst*p (but for a burst that was made
// smaller than what is held: then level is not above 0 until that is spent or
// aged), level is below 0 by what is owed, at most a quarter of the burst, and ts
// never lies more than clockSlack after the latest reading, so no microsecond
// refills twice.
type state struct {
	level int64 // units in the bucket at ts; below 0: tokens were spent that it did not have
	ts    int64 // microseconds: up to here the bucket has been refilled
	lag   int64 // by how much its clock has ever stepped back: epochs are counted on ts+lag
	held  int64 // tokens leased in the epoch of ts and not yet reported spent
	prev  int64 // the same of the epoch before; older ones count no more
	used  int64 // epoch in which somebody last went by the policy in force

	policy Policy
}

// call is one visit to one bucket: what is asked of it and its answer.
type call struct {
	key    string
	policy Policy // the caller's

	// life is the length of an epoch in microseconds: what is leased counts as
	// held to the end of the next one. 0 where node and bucket live and die
	// together: then it counts until it is released.
	life int64

	need  int64 // tokens to admit at once, as many as there are
	hold  int64 // 1: what is granted is leased as well, and counts as held: the answer takes long
	extra int64 // tokens to lease on top, if need was met
	parts int64 // extra is at most one of so many parts of what is left; 0 is 1
	spare int64 // and more, from a bucket that stays half full

	from, rel0, rel1 int64 // no longer held, of those leased in epoch from, and in the one before

	ret  int64 // tokens to give back
	debt int64 // tokens spent elsewhere, to be debited

	reply
	err error // nothing is known of this call, or movedTo: it was not carried out
}

// reply tells how the bucket stands after a visit.
type reply struct {
	granted int64 // of need
	leased  int64 // of extra and spare
	level   int64 // units, of which p are a token
	p       int64 // of the policy in force: not the caller's, perhaps
	wait    int64 // microseconds until there is a token; 0 when there is one
	epoch   int64
	lasts   int64 // microseconds for which what is leased now counts as held
	held    int64 // tokens that nodes hold, this one included
	version int64 // of the policy in force
	now     int64 // the store's time of the visit, microseconds
}

// remaining is the whole tokens that are left.
func (r *reply) remaining() int64 { return max(0, r.level) / r.p }

// fullState is what an absent bucket stands for.
func fullState(p Policy, now int64) state {
	return state{level: p.units(), ts: now, used: -1, policy: p}
}

// visit carries out c at time now and reports whether the state is another one
// than before. A refused call changes nothing: refilling later comes to the
// same level, so nothing need be stored.
//
// The order matters: time that has passed counts under the policy it passed
// under; releases make room for what is given back, which cannot lift the
// bucket over its burst; a debit comes before the grant, or tokens would be
// spent twice.
func (s *state) visit(c *call, now int64) (changed bool) {
	before, absent := *s, s.used < 0
	stepped := !s.refill(now, c.life)
	taken := s.adopt(c)
	epoch := s.epoch(c.life)
	same := c.policy.sameLimits(s.policy)
	confirmed := same && s.used != epoch
	if confirmed {
		s.used = epoch
	}
	s.release(c, epoch)
	s.giveBack(c.ret)
	s.debit(c.debt)
	c.reply = reply{p: s.policy.p, version: s.policy.Version, now: now, epoch: epoch, lasts: s.lasts(c.life)}
	if !stepped {
		s.grant(c)
	}
	c.level, c.held, c.wait = s.level, s.held+s.prev, s.wait()
	if stepped || taken || confirmed && !absent ||
		c.granted+c.leased > 0 || c.rel0+c.rel1 > 0 || c.ret > 0 || c.debt > 0 {
		return true
	}
	*s = before
	return false
}

// refill adds what the time since ts has brought, in pieces at the edges of
// epochs, where less is held from then on. It reports false where the clock has
// stepped back: the bucket then starts counting anew from now, and this visit
// is granted nothing.
func (s *state) refill(now, life int64) bool {
	if now < s.ts {
		if s.ts-now > clockSlack {
			s.lag += s.ts - now
			s.ts = now
			return false
		}
		return true
	}
	for life > 0 && s.held+s.prev > 0 {
		edge := s.ts + life - (s.ts+s.lag)%life
		if edge > now {
			break
		}
		s.grow(edge - s.ts)
		s.ts = edge
		s.prev, s.held = s.held, 0
	}
	s.grow(now - s.ts)
	s.ts = now
	return true
}

// grow adds dt microseconds of refill.
func (s *state) grow(dt int64) { s.level = max(s.level, grown(s.level, s.cap(), dt, s.policy.r)) }

// grown is level after dt microseconds at r units each, at most cap. It
// compares before it multiplies: the product may not fit 64 bits.
func grown(level, cap, dt, r int64) int64 {
	if missing := cap - level; missing <= 0 || dt >= ceilDiv(missing, r) {
		return cap
	}
	return level + dt*r
}

// cap is the most the bucket may contain while others hold tokens of it.
func (s *state) cap() int64 { return max(0, s.policy.Burst-s.held-s.prev) * s.policy.p }

// epoch is a count of lives since the clock's beginning. Where nothing is lent
// it still tells how long ago a policy was gone by.
func (s *state) epoch(life int64) int64 {
	if life == 0 {
		life = leaseLife
	}
	return (s.ts + s.lag) / life
}

// adopt puts the caller's policy in force where it is the newer one, and
// reports whether it did. Any other stays out until nobody has gone by the one in
// force for an epoch: nodes that disagree cannot pull the bucket to and fro, and
// versions that begin anew, as those of a restored database do, are not ignored
// for ever. (Under one version there is nobody to disagree in one process.)
func (s *state) adopt(c *call) bool {
	same := c.policy.sameLimits(s.policy)
	switch {
	case c.policy.Version > s.policy.Version:
	case !same && c.life == 0 && c.policy.Version == s.policy.Version:
	case !same && s.epoch(c.life)-s.used > 1:
	default:
		return false
	}
	if same {
		s.policy = c.policy
		return true
	}
	s.rescale(c.policy)
	s.level = min(s.level, s.cap())
	return true
}

// rescale puts another policy in force and keeps the filled share, rounded
// down: a change of policy never makes a token out of nothing.
func (s *state) rescale(to Policy) {
	if s.level < 0 {
		s.level = -share(-s.level, to.units(), s.policy.units()) - 1
	} else {
		s.level = share(s.level, to.units(), s.policy.units())
	}
	s.policy = to
}

// share is floor(a * b / c), 0 <= a <= c.
func share(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	quotient, _ := bits.Div64(high, low, uint64(c)) // <= b: fits
	return int64(quotient)
}

// release strikes off what is no longer held. Epochs that ended in the
// meantime have struck it off themselves.
func (s *state) release(c *call, epoch int64) {
	switch c.from {
	case epoch:
		s.held = max(0, s.held-c.rel0)
		s.prev = max(0, s.prev-c.rel1)
	case epoch - 1:
		s.prev = max(0, s.prev-c.rel0)
	}
}

// giveBack returns tokens, never above the cap.
func (s *state) giveBack(tokens int64) {
	room := s.cap() - s.level
	switch {
	case room <= 0:
	case tokens > room/s.policy.p:
		s.level = s.cap()
	default:
		s.level += tokens * s.policy.p
	}
}

// debit removes tokens that were spent elsewhere, and those that are not there
// as well: what others took, or are about to give back, in between. It goes no
// lower than a quarter of the burst is owed, because what is debited twice (its
// answer was lost) is missing.
func (s *state) debit(tokens int64) {
	least := min(s.level, -(s.policy.Burst / 4 * s.policy.p))
	if tokens > (s.level-least)/s.policy.p {
		s.level = least
		return
	}
	s.level -= tokens * s.policy.p
}

// grant admits what is needed, and leases where that leaves enough: at most a
// quarter of the burst is out at a time, and a node takes no more than its part
// of what is left: else leases taken amid a burst refuse its rest. An eighth may
// be spare tokens, which only a bucket that is half full gives away.
func (s *state) grant(c *call) {
	have, burst := max(0, s.level)/s.policy.p, s.policy.Burst
	c.granted = min(c.need, have)
	if c.granted == c.need && burst >= leastLeased {
		out := s.held + s.prev
		c.leased = max(0, min(c.extra, (have-c.granted)/max(1, c.parts), burst/4-out))
		if 2*(have-c.granted-c.leased) >= burst {
			if room := burst/8 - out - c.leased; room > 0 {
				c.leased += max(0, min(c.spare, (room+1)/2))
			}
		}
	}
	s.level -= (c.granted + c.leased) * s.policy.p
	s.held += c.leased + c.hold*c.granted
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

// untilAbsent is the time after which the bucket is as good as absent: full,
// and nothing held any more.
func (s *state) untilAbsent(life int64) int64 {
	if s.held+s.prev == 0 {
		return s.untilFull()
	}
	if life == 0 {
		return 1 << 62
	}
	return max(s.untilFull(), s.lasts(life))
}

// lasts is how long what is leased now counts as held: this epoch and the next.
func (s *state) lasts(life int64) int64 { return (s.epoch(life)+2)*life - s.ts - s.lag }
