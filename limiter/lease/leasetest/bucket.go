package leasetest

import (
	"math"

	"listedge/limiter/lease"
)

const (
	// clockSlack: a clock this far behind the bucket's is taken for jitter
	// between readings, not for a step.
	clockSlack = 1_000_000

	maxArrived  = 1_000_000_000 // of a report, so that doubles hold the demand
	leastParts  = 8             // of a bucket is leased one at most
	scarceParts = 4             // a bucket with less than such a part left is empty
)

// Bucket is a shared token bucket. This file is the arithmetic of
// token_bucket.lua in Go, for tests and simulations. A test holds the two equal,
// state included.
//
// Invariants: Level + Withheld + (Held+Prev)*Token <= Burst*Token (but for a
// burst that was made smaller than what is held: then Level is not above 0 until
// that is spent or aged); Level is below 0 by what is owed, at most a quarter of
// the burst; TS never lies more than clockSlack after the latest reading, so no
// microsecond refills twice.
type Bucket struct {
	Level    int64 // micro-tokens at TS; below 0: tokens were spent that it did not have
	TS       int64 // microseconds: up to here the bucket has been refilled
	Lag      int64 // by how much its clock has ever stepped back: epochs are counted on TS+Lag
	Held     int64 // tokens leased in the epoch of TS and not yet reported spent
	Prev     int64 // the same of the epoch before; older ones count no more
	Used     int64 // epoch in which a node last used the policy in force
	Demand   int64 // thousandths of a request: those of the last Policy.DemandSpan, decaying
	Withheld int64 // micro-tokens: what came for nodes that are missing and may spend it
	Owner    int64 // of a burst smaller than the fleet: the node that may spend without Redis; 0 = none
	OwnerAt  int64 // when it was here last

	Policy lease.Policy
}

// Full is what an absent bucket stands for.
func Full(p lease.Policy, now int64) Bucket {
	return Bucket{Level: p.Units(), TS: now, Used: -1, Policy: p}
}

// Visit carries out c at time now and reports whether the bucket must be stored.
// A refused request changes nothing: refilling later comes to the same level.
//
// The order matters: time that has passed counts under the policy it passed
// under; releases make room for what is given back, which cannot lift the bucket
// over its burst; a debit comes before the grant, or tokens would be spent twice.
func (b *Bucket) Visit(c *lease.Call, now int64) (changed bool) {
	before, absent := *b, b.Used < 0
	missing, nodes := b.absentees(c, now)
	stepped := !b.refill(now, missing, nodes)
	b.merge(missing, nodes)
	replaced := b.replacePolicy(&c.Policy)
	epoch := b.epoch()
	confirmed := sameLimits(&c.Policy, &b.Policy) && b.Used != epoch
	if confirmed {
		b.Used = epoch
	}
	owned := b.own(c)
	b.Demand += min(c.Arrived, maxArrived) * 1000
	b.release(c, epoch)
	b.giveBack(min(c.Ret, b.Policy.Burst))
	b.debit(min(c.Debt, b.Policy.Burst))
	c.Reply = lease.Reply{Epoch: epoch, Lasts: b.lasts(), Demand: b.Demand}
	if !stepped {
		b.grant(c)
	}
	c.Level, c.Reply.Held = b.Level, b.Held+b.Prev
	if b.Level < lease.Token {
		c.Wait = b.Policy.TimeFor(lease.Token - b.Level)
	}
	if b.Owner == c.Node && c.Node != 0 {
		c.Owner = 1
	}
	if stepped || replaced || owned || confirmed && !absent || b.Policy.Leased() && c.Arrived > 0 ||
		c.Granted+c.Leased+c.Rel0+c.Rel1+c.Ret+c.Debt > 0 {
		return true
	}
	*b = before
	return false
}

// absentees returns how many of how many parts of the refill are withheld. Where
// the burst is smaller than the fleet, all of it belongs to the owner.
func (b *Bucket) absentees(c *lease.Call, now int64) (missing, nodes int64) {
	nodes = max(1, c.Nodes)
	switch {
	case b.Policy.Burst >= nodes:
		return c.Missing, nodes
	case c.Missing == 0 || b.Owner == 0 || b.Owner == c.Node || now-b.OwnerAt <= lease.MissingAfter:
		return 0, nodes
	}
	return nodes, nodes
}

// refill adds what the time since TS has brought, in pieces at the edges of
// epochs, where less is held from then on. It reports false where the clock has
// stepped back: the bucket then counts anew from now, and this visit is granted
// nothing.
func (b *Bucket) refill(now, missing, nodes int64) bool {
	if now < b.TS {
		if b.TS-now > clockSlack {
			b.Lag += b.TS - now
			b.TS = now
			return false
		}
		return true
	}
	span := float64(b.Policy.DemandSpan())
	b.Demand = int64(math.Floor(float64(b.Demand) * span / (span + float64(now-b.TS))))
	for b.Held+b.Prev > 0 {
		edge := b.TS + lease.Epoch - (b.TS+b.Lag)%lease.Epoch
		if edge > now {
			break
		}
		b.grow(edge-b.TS, missing, nodes)
		b.TS = edge
		b.Prev, b.Held = b.Held, 0
	}
	b.grow(now-b.TS, missing, nodes)
	b.TS = now
	return true
}

// LevelAt is the level at now, all nodes present.
func (b Bucket) LevelAt(now int64) int64 {
	b.refill(now, 0, 1)
	return b.Level
}

// grow adds dt microseconds of refill, of which the missing nodes' part is
// withheld: they may be spending it.
func (b *Bucket) grow(dt, missing, nodes int64) {
	earned := b.Policy.Earned(dt)
	withheld := part(earned, missing, nodes)
	b.Level = max(b.Level, min(b.cap()-b.Withheld, b.Level+earned-withheld))
	b.Withheld = max(b.Withheld, min(b.Withheld+withheld, b.mostWithheld(missing, nodes), b.cap()-b.Level))
}

// merge adds to the level what is withheld for more nodes than are missing: the
// others have returned, and have reported what they spent.
func (b *Bucket) merge(missing, nodes int64) {
	if excess := b.Withheld - b.mostWithheld(missing, nodes); excess > 0 {
		b.Level += excess
		b.Withheld -= excess
	}
}

// part is so many of so many parts of units, rounded down.
func part(units, parts, of int64) int64 {
	return int64(math.Floor(float64(units) * float64(parts) / float64(of)))
}

// mostWithheld is the missing nodes' part of a full bucket.
func (b *Bucket) mostWithheld(missing, nodes int64) int64 {
	return part(b.Policy.Units(), missing, nodes)
}

// sameLimits: equal whatever the version.
func sameLimits(p, q *lease.Policy) bool { return p.Rate == q.Rate && p.Burst == q.Burst }

// cap is the most the bucket may contain while nodes hold tokens of it.
func (b *Bucket) cap() int64 { return max(0, b.Policy.Burst-b.Held-b.Prev) * lease.Token }

// epoch is a count of Epochs since the clock's beginning.
func (b *Bucket) epoch() int64 { return (b.TS + b.Lag) / lease.Epoch }

// replacePolicy puts the caller's policy in force where it is the newer one, and reports
// whether it did. Any other stays out until no node has used the one in force for
// an epoch: nodes that disagree cannot pull the bucket to and fro, and versions
// that begin anew, as those of a restored database do, are not ignored for ever.
// What is above the new burst is gone; what is missing comes by the new rate.
func (b *Bucket) replacePolicy(p *lease.Policy) bool {
	if p.Version <= b.Policy.Version && (sameLimits(p, &b.Policy) || b.epoch()-b.Used <= 1) {
		return false
	}
	b.Policy = *p
	b.Level = max(min(b.Level, b.cap()), -b.floor())
	b.Withheld = max(0, min(b.Withheld, b.cap()-b.Level))
	return true
}

// own makes the caller the owner of a bucket whose burst is smaller than the
// fleet, where there is none or it has not come for long and all nodes are
// present, so that it knows by its own clock that it is the owner no longer.
func (b *Bucket) own(c *lease.Call) bool {
	if b.Policy.Burst >= c.Nodes || c.Node == 0 ||
		b.Owner == c.Node && b.TS-b.OwnerAt <= lease.MissingAfter/2 ||
		b.Owner != 0 && b.Owner != c.Node && (c.Missing > 0 || b.TS-b.OwnerAt <= lease.OwnerLife) {
		return false
	}
	b.Owner, b.OwnerAt = c.Node, b.TS
	return true
}

// release subtracts what is no longer held. Epochs that ended in the meantime have
// subtracted it themselves.
func (b *Bucket) release(c *lease.Call, epoch int64) {
	switch c.Epoch {
	case epoch:
		b.Held = max(0, b.Held-c.Rel0)
		b.Prev = max(0, b.Prev-c.Rel1)
	case epoch - 1:
		b.Prev = max(0, b.Prev-c.Rel0)
	}
}

// giveBack returns tokens, never above the burst.
func (b *Bucket) giveBack(tokens int64) {
	b.Level = max(b.Level, min(b.cap()-b.Withheld, b.Level+tokens*lease.Token))
}

// debit removes tokens that were spent elsewhere, from what was withheld for
// that first, and those that are not there as well.
func (b *Bucket) debit(tokens int64) {
	paid := min(tokens*lease.Token, b.Withheld)
	b.Withheld -= paid
	b.Level = max(min(b.Level, -b.floor()), b.Level-tokens*lease.Token+paid)
}

// floor is how much may be owed: what is debited twice, because its answer was
// lost, is missing.
func (b *Bucket) floor() int64 { return b.Policy.Burst / 4 * lease.Token }

// grant admits what is needed, and leases where that leaves enough: half of the
// burst is out at most. A bucket that is not being drained leases to each node
// up to half of its part of what is left, and one that is, a quarter: else leases
// taken amid a burst refuse its rest. In an empty one, each node gets as many
// tokens as its share of all requests is: they have the same chance on each.
func (b *Bucket) grant(c *lease.Call) {
	burst, nodes := b.Policy.Burst, max(1, c.Nodes)
	have := max(0, b.Level) / lease.Token
	most, capacity := have, b.Policy.Capacity()
	scarce := have*scarceParts < burst && float64(b.Demand) > capacity*lease.OverloadFrom
	if scarce && nodes > 1 && b.Policy.Leased() {
		share := float64(c.Entitled) * capacity * lease.FairShare / float64(b.Demand) / 1000
		most = min(have, int64(math.Floor(share)))
	}
	c.Granted = min(c.Need, most)
	if c.Granted == c.Need && b.Policy.Leased() {
		held := b.Held + b.Prev
		bound := (have + held) / max(leastParts, 2*nodes+1)
		switch {
		case scarce:
			bound = most
		case 2*have < burst:
			bound = have / (3 * nodes)
		}
		c.Leased = max(0, min(c.Extra, bound, most-c.Granted, burst/2-held))
	}
	b.Level -= (c.Granted + c.Leased) * lease.Token
	b.Held += c.Leased + c.Hold*c.Granted
}

// lasts is how long what is leased now counts as held: this epoch and the next.
func (b *Bucket) lasts() int64 { return (b.epoch()+2)*lease.Epoch - b.TS - b.Lag }

// UntilAbsent is the time after which the bucket is as good as absent: full, and
// nothing held or withheld any more.
func (b *Bucket) UntilAbsent() int64 {
	last := b.Policy.TimeFor(b.Policy.Units() - b.Level)
	if b.Held+b.Prev > 0 {
		last = max(last, b.lasts())
	}
	if b.Owner != 0 || b.Withheld > 0 {
		last = max(last, lease.MemberLife)
	}
	return last
}

// Within reports whether the bucket keeps its invariants.
func (b *Bucket) Within() bool {
	return b.Level >= -b.floor() && b.Held >= 0 && b.Prev >= 0 && b.Withheld >= 0 && b.Level <= max(0, b.cap()-b.Withheld)
}
