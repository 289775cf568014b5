package limiter_test

import (
	"math"

	. "listedge/limiter"
	"listedge/limiter/lease"
)

const (
	// clockSlack is how far a reading of the clock may be behind the one before. If it
	// is further behind, the clock was set back.
	clockSlack = 1_000_000

	maxArrived = 1_000_000_000 // requests in one report, so that doubles hold the demand exactly
	minParts   = 8             // a lease is at most one of so many parts of the bucket
)

// twin is a shared token bucket: the arithmetic of token_bucket.lua in Go. The script
// explains the fields, their units, the invariants, the order of the steps, and the
// reasons. A test compares the replies and states of both.
type twin struct {
	Level, RefilledAt, ClockLag, HeldNow, HeldBefore, UsedIn, Demand, Withheld int64

	Policy Policy
}

// fullTwin returns a full bucket, which is what an absent one counts as.
func fullTwin(p Policy, now int64) twin {
	return twin{Level: p.Units(), RefilledAt: now, UsedIn: -1, Policy: p}
}

// execute executes the call c at time now and reports whether the bucket must be stored.
// A refused request changes nothing: a later refill results in the same level.
func (b *twin) execute(c *lease.Call, now int64) (changed bool) {
	if !b.sound() {
		*b = fullTwin(c.Policy, now)
	}
	before, absent := *b, b.UsedIn < 0
	missing, nodes := c.Missing, max(1, c.Nodes)
	stepped := !b.refill(now, missing, nodes)
	if excess := b.Withheld - portion(b.Policy.Units(), missing, nodes); excess > 0 {
		b.Level += excess
		b.Withheld -= excess
	}
	slice := (b.RefilledAt + b.ClockLag) / lease.Slice
	same := c.Policy.Rate == b.Policy.Rate && c.Policy.Burst == b.Policy.Burst
	replaced := c.Policy.Version > b.Policy.Version || !same && slice-b.UsedIn > 1
	if replaced {
		b.Policy, same = c.Policy, true
		b.Level = max(min(b.Level, b.cap()), -b.floor())
		b.Withheld = max(0, min(b.Withheld, b.cap()-b.Level))
	}
	confirmed := same && b.UsedIn != slice
	if confirmed {
		b.UsedIn = slice
	}
	b.Demand += min(c.Arrived, maxArrived) * 1000
	switch c.Slice {
	case slice:
		b.HeldNow = max(0, b.HeldNow-c.ReleasedNow)
		b.HeldBefore = max(0, b.HeldBefore-c.ReleasedBefore)
	case slice - 1:
		b.HeldBefore = max(0, b.HeldBefore-c.ReleasedNow)
	}
	b.Level = max(b.Level, min(b.cap()-b.Withheld, b.Level+min(c.Returned, b.Policy.Burst)*lease.Token))
	owed := min(c.Debt, b.Policy.Burst) * lease.Token
	paid := min(owed, b.Withheld)
	b.Withheld -= paid
	b.Level = max(min(b.Level, -b.floor()), b.Level-owed+paid)
	c.Reply = lease.Reply{Slice: slice, Lasts: b.lasts(), Demand: b.Demand}
	if late := c.Until > 0 && now > c.Until; !stepped && !late {
		b.grant(c, nodes)
	}
	c.Level, c.Reply.Held = b.Level, b.HeldNow+b.HeldBefore
	if b.Level < lease.Token {
		c.Wait = b.Policy.TimeFor(lease.Token - b.Level)
	}
	if stepped || replaced || confirmed && !absent || b.Policy.Leased() && c.Arrived > 0 ||
		c.Granted+c.Leased+c.ReleasedNow+c.ReleasedBefore+c.Returned+c.Debt > 0 {
		return true
	}
	*b = before
	return false
}

// refill adds the tokens of the time since RefilledAt. It reports false if the clock was set
// back. Then RefilledAt is set to now, and this call gets no tokens.
func (b *twin) refill(now, missing, nodes int64) bool {
	if now < b.RefilledAt {
		if b.RefilledAt-now > clockSlack {
			b.ClockLag += b.RefilledAt - now
			b.RefilledAt = now
			return false
		}
		return true
	}
	b.Demand = int64(math.Floor(float64(b.Demand) * float64(max(0, lease.DemandSpan-(now-b.RefilledAt))) / lease.DemandSpan))
	for b.HeldNow+b.HeldBefore > 0 {
		edge := b.RefilledAt + lease.Slice - (b.RefilledAt+b.ClockLag)%lease.Slice
		if edge > now {
			break
		}
		b.grow(edge-b.RefilledAt, missing, nodes)
		b.RefilledAt = edge
		b.HeldBefore, b.HeldNow = b.HeldNow, 0
	}
	b.grow(now-b.RefilledAt, missing, nodes)
	b.RefilledAt = now
	return true
}

// levelAt is the level at now if no node is missing.
func (b twin) levelAt(now int64) int64 {
	b.refill(now, 0, 1)
	return b.Level
}

// grow adds dt microseconds of refill, of which it withholds the part of the missing nodes.
func (b *twin) grow(dt, missing, nodes int64) {
	earned := b.Policy.Earned(dt)
	withheld := portion(earned, missing, nodes)
	b.Level = max(b.Level, min(b.cap()-b.Withheld, b.Level+earned-withheld))
	b.Withheld = max(b.Withheld, min(b.Withheld+withheld, portion(b.Policy.Units(), missing, nodes), b.cap()-b.Level))
}

// portion is units*parts/of, rounded down.
func portion(units, parts, of int64) int64 {
	return int64(math.Floor(float64(units) * float64(parts) / float64(of)))
}

// cap is the most the bucket may contain while nodes hold tokens of it.
func (b *twin) cap() int64 { return max(0, b.Policy.Burst-b.HeldNow-b.HeldBefore) * lease.Token }

// floor bounds how far a debt takes the level below 0.
func (b *twin) floor() int64 { return b.Policy.Burst / 4 * lease.Token }

// grant gives the caller tokens: those for waiting requests (Need), then a lease (Extra).
func (b *twin) grant(c *lease.Call, nodes int64) {
	burst, have := b.Policy.Burst, max(0, b.Level)/lease.Token
	c.Granted = min(c.Need, have)
	if c.Granted == c.Need && b.Policy.Leased() {
		held := b.HeldNow + b.HeldBefore
		bound := (have + held) / max(minParts, 2*nodes+1)
		switch {
		case c.Fair == 1:
			bound = have
		case burst < 3*nodes:
			bound = 0
		case 2*have < burst:
			bound = have / (3 * nodes)
		}
		c.Leased = max(0, min(c.Extra, bound, have-c.Granted, burst/2-held))
	}
	b.Level -= (c.Granted + c.Leased) * lease.Token
	b.HeldNow += c.Leased + c.Hold*c.Granted
}

// lasts is for how long a lease of now counts as held: until the end of the next slice.
func (b *twin) lasts() int64 { return 2*lease.Slice - (b.RefilledAt+b.ClockLag)%lease.Slice }

// untilAbsent is the time after which an absent bucket would be the same: full, with
// nothing held or withheld.
func (b *twin) untilAbsent() int64 {
	last := b.Policy.TimeFor(b.Policy.Units() - b.Level)
	if b.HeldNow+b.HeldBefore > 0 {
		last = max(last, b.lasts())
	}
	if b.Withheld > 0 {
		last = max(last, lease.MemberLife)
	}
	return last
}

// sound reports whether the bucket keeps its invariants.
func (b *twin) sound() bool {
	for _, n := range []int64{b.RefilledAt, b.ClockLag, b.HeldNow, b.HeldBefore, b.UsedIn + 1, b.Demand, b.Withheld, b.Policy.Version,
		b.Policy.Rate} {
		if n < 0 || n > 1<<53 {
			return false
		}
	}
	ticks := b.RefilledAt + b.ClockLag
	return b.Policy.Rate <= lease.MaxUnits && b.Policy.Burst >= 1 && b.Policy.Burst <= lease.MaxTokens && ticks <= lease.MaxUnits &&
		b.UsedIn <= ticks/lease.Slice && b.Level >= -b.floor() && b.Level+b.Withheld <= b.cap()
}
