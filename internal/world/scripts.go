package world

import (
	"encoding/binary"
	"maps"
	"math"
)

// The scripts of limits in Go: token_bucket.lua, quota.lua and heartbeat.lua of package limiter, whose comments have the fields, the
// units, the invariants and the reasons. Tests of that package hold scripts and models equal, state included. All times are microseconds.

const (
	token      = 1_000_000 // micro-tokens
	slice      = 10_000_000
	clockSlack = 1_000_000 // a smaller step back of the clock is waited out
	demandSpan = 6_000_000
	memberLife = 60_000_000
	silentFor  = 1_100_000

	maxUnits    = 1 << 52
	maxTokens   = maxUnits / token
	maxArrived  = 1_000_000_000 // requests in one report
	leastLeased = 16            // smaller bursts are not leased from
	minParts    = 8             // a lease is at most one of so many parts of the bucket
)

// Bucket is what Redis has of a token bucket, in the order in which it is stored.
type Bucket struct {
	Level, RefilledAt, ClockLag, HeldNow, HeldBefore, UsedIn, Demand, Withheld int64

	Version, Rate, Burst int64 // the policy in force
}

// BucketCall is one call of the script, in the order of its arguments.
type BucketCall struct {
	Rate, Burst, Version, Need, Hold, Extra, Arrived, Fair, Slice, ReleasedNow, ReleasedBefore, Returned, Debt, Nodes, Silent, Until int64
}

// BucketReply is its answer.
type BucketReply struct{ Granted, Leased, Level, Wait, Slice, Lasts, Held, Demand int64 }

// FullBucket is what an absent one counts as.
func FullBucket(rate, burst, version, now int64) Bucket {
	return Bucket{Level: burst * token, RefilledAt: now, UsedIn: -1, Version: version, Rate: rate, Burst: burst}
}

// fields are the numbers as they are stored.
func (b *Bucket) fields() []*int64 {
	return []*int64{&b.Level, &b.RefilledAt, &b.ClockLag, &b.HeldNow, &b.HeldBefore, &b.UsedIn, &b.Demand, &b.Withheld, &b.Version, &b.Rate, &b.Burst}
}

func (c *BucketCall) fields() []*int64 {
	return []*int64{&c.Rate, &c.Burst, &c.Version, &c.Need, &c.Hold, &c.Extra, &c.Arrived, &c.Fair, &c.Slice, &c.ReleasedNow, &c.ReleasedBefore,
		&c.Returned, &c.Debt, &c.Nodes, &c.Silent, &c.Until}
}

// Pack returns the bucket as Redis stores it.
func (b *Bucket) Pack() (packed []byte) {
	for _, n := range b.fields() {
		packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(float64(*n)))
	}
	return packed
}

// UnpackBucket reads what Redis stores. It is not ok if that is of another form, or holds what is no integer.
func UnpackBucket(packed []byte) (b Bucket, ok bool) { return b, unpackDoubles(packed, b.fields()) }

// UnpackBucketCall reads the script's argument.
func UnpackBucketCall(packed []byte) (c BucketCall, ok bool) {
	return c, unpackDoubles(packed, c.fields())
}

func unpackDoubles(packed []byte, fields []*int64) (ok bool) {
	ok = len(packed) == 8*len(fields)
	for i := 0; ok && i < len(fields); i++ {
		number := math.Float64frombits(binary.LittleEndian.Uint64(packed[8*i:]))
		*fields[i] = int64(number)
		ok = float64(*fields[i]) == number
	}
	return ok
}

// Execute executes a call, and reports whether the bucket must be stored. A refused request changes nothing: a later refill comes to
// the same level.
func (b *Bucket) Execute(c *BucketCall, now int64) (r BucketReply, changed bool) {
	if !b.Sound() {
		*b = FullBucket(c.Rate, c.Burst, c.Version, now)
	}
	before, absent := *b, b.UsedIn < 0
	stepped := !b.refill(now, c.Silent)
	if excess := b.Withheld - b.Burst*c.Silent; excess > 0 {
		b.Level += excess
		b.Withheld -= excess
	}
	present := (b.RefilledAt + b.ClockLag) / slice
	replaced, confirmed := b.adopt(c, present)
	b.Demand += min(c.Arrived, maxArrived) * 1000
	switch c.Slice {
	case present:
		b.HeldNow = max(0, b.HeldNow-c.ReleasedNow)
		b.HeldBefore = max(0, b.HeldBefore-c.ReleasedBefore)
	case present - 1:
		b.HeldBefore = max(0, b.HeldBefore-c.ReleasedNow)
	}
	b.Level = max(b.Level, min(b.cap()-b.Withheld, b.Level+min(c.Returned, b.Burst)*token))
	owed := min(c.Debt, b.Burst) * token
	paid := min(owed, b.Withheld)
	b.Withheld -= paid
	b.Level = max(min(b.Level, b.lowest()), b.Level-owed+paid)
	r = BucketReply{Slice: present, Lasts: b.lasts(), Demand: b.Demand}
	if late := c.Until > 0 && now > c.Until; !stepped && !late {
		b.grant(c, &r, max(1, c.Nodes))
	}
	r.Level, r.Held = b.Level, b.HeldNow+b.HeldBefore
	if b.Level < token {
		r.Wait = b.timeFor(token - b.Level)
	}
	if stepped || replaced || confirmed && !absent || b.Burst >= leastLeased && c.Arrived > 0 ||
		r.Granted+r.Leased+c.ReleasedNow+c.ReleasedBefore+c.Returned+c.Debt > 0 {
		return r, true
	}
	*b = before
	return r, false
}

// adopt puts the caller's policy into force if it is newer, or if nobody has used the present one lately.
func (b *Bucket) adopt(c *BucketCall, present int64) (replaced, confirmed bool) {
	same := c.Rate == b.Rate && c.Burst == b.Burst
	replaced = c.Version > b.Version || !same && present-b.UsedIn > 1
	if replaced {
		b.Rate, b.Burst, b.Version, same = c.Rate, c.Burst, c.Version, true
		b.Level = max(min(b.Level, b.cap()), b.lowest())
		b.Withheld = max(0, min(b.Withheld, b.cap()-b.Level))
	}
	confirmed = same && b.UsedIn != present
	if confirmed {
		b.UsedIn = present
	}
	return replaced, confirmed
}

// refill adds the tokens of the time since RefilledAt. It reports false if the clock was set back. Then RefilledAt is set to now, and
// this call gets no tokens.
func (b *Bucket) refill(now, silent int64) bool {
	if now < b.RefilledAt {
		if b.RefilledAt-now > clockSlack {
			b.ClockLag += b.RefilledAt - now
			b.RefilledAt = now
			return false
		}
		return true
	}
	b.Demand = int64(math.Floor(float64(b.Demand) * float64(max(0, demandSpan-(now-b.RefilledAt))) / demandSpan))
	for b.HeldNow+b.HeldBefore > 0 {
		edge := b.RefilledAt + slice - (b.RefilledAt+b.ClockLag)%slice
		if edge > now {
			break
		}
		b.grow(edge-b.RefilledAt, silent)
		b.RefilledAt = edge
		b.HeldBefore, b.HeldNow = b.HeldNow, 0
	}
	b.grow(now-b.RefilledAt, silent)
	b.RefilledAt = now
	return true
}

// LevelAt is the level at now if no node is silent.
func (b Bucket) LevelAt(now int64) int64 {
	b.refill(now, 0)
	return b.Level
}

// grow adds dt microseconds of refill, of which it withholds the share of the silent nodes, in millionths.
func (b *Bucket) grow(dt, silent int64) {
	earned := int64(min(float64(b.Burst*token), math.Floor(float64(dt)*float64(b.Rate)/1e6)))
	withheld := int64(math.Floor(float64(earned) * float64(silent) / token))
	b.Level = max(b.Level, min(b.cap()-b.Withheld, b.Level+earned-withheld))
	b.Withheld = max(b.Withheld, min(b.Withheld+withheld, b.Burst*silent, b.cap()-b.Level))
}

// cap is the most the bucket may contain while nodes hold tokens of it.
func (b *Bucket) cap() int64 { return max(0, b.Burst-b.HeldNow-b.HeldBefore) * token }

// lowest bounds how far a debt takes the level below 0.
func (b *Bucket) lowest() int64 { return -(b.Burst / 4 * token) }

// grant gives the caller tokens: those for waiting requests, then a lease.
func (b *Bucket) grant(c *BucketCall, r *BucketReply, nodes int64) {
	have := max(0, b.Level) / token
	r.Granted = min(c.Need, have)
	if r.Granted == c.Need && b.Burst >= leastLeased {
		held := b.HeldNow + b.HeldBefore
		bound := (have + held) / max(minParts, 2*nodes+1)
		switch {
		case c.Fair == 1:
			bound = have
		case b.Burst < 3*nodes:
			bound = 0
		case 2*have < b.Burst:
			bound = have / (3 * nodes)
		}
		r.Leased = max(0, min(c.Extra, bound, have-r.Granted, b.Burst/2-held))
	}
	b.Level -= (r.Granted + r.Leased) * token
	b.HeldNow += r.Leased + c.Hold*r.Granted
}

// lasts is for how long a lease of now counts as held: until the end of the next slice.
func (b *Bucket) lasts() int64 { return 2*slice - (b.RefilledAt+b.ClockLag)%slice }

func (b *Bucket) timeFor(units int64) int64 {
	if units <= 0 {
		return 0
	}
	return int64(min(maxUnits, math.Ceil(float64(units)*1e6/float64(b.Rate))))
}

// UntilAbsent is the time after which an absent bucket would be the same: full, with nothing held or withheld.
func (b *Bucket) UntilAbsent() int64 {
	last := b.timeFor(b.Burst*token - b.Level)
	if b.HeldNow+b.HeldBefore > 0 {
		last = max(last, b.lasts())
	}
	if b.Withheld > 0 {
		last = max(last, memberLife)
	}
	return last
}

// Sound reports whether the bucket keeps its invariants.
func (b *Bucket) Sound() bool {
	for _, n := range []int64{b.RefilledAt, b.ClockLag, b.HeldNow, b.HeldBefore, b.UsedIn + 1, b.Demand, b.Withheld, b.Version, b.Rate} {
		if n < 0 || n > 1<<53 {
			return false
		}
	}
	ticks := b.RefilledAt + b.ClockLag
	return b.Rate <= maxUnits && b.Burst >= 1 && b.Burst <= maxTokens && ticks <= maxUnits && b.UsedIn <= ticks/slice &&
		b.Level >= b.lowest() && b.Level+b.Withheld <= b.cap()
}

// Numbers are the answer as the script gives it.
func (r *BucketReply) Numbers() []int64 {
	return []int64{r.Granted, r.Leased, r.Level, r.Wait, r.Slice, r.Lasts, r.Held, r.Demand}
}

// Quota is what Redis has of a quota in one period.
type Quota struct {
	Total int64
	Runs  map[int64]QuotaRun
}

// QuotaRun is what it knows of a run of a node: the number of its last call, and what it has taken.
type QuotaRun struct{ Number, Taken int64 }

// QuotaCall is one call of the script, in the order of its arguments.
type QuotaCall struct{ Tokens, Run, Number, Floor, Need, Want, Nodes, Last, Life int64 }

// Execute executes a call, and answers what its run has taken, and what is taken in all.
func (q *Quota) Execute(c *QuotaCall) []int64 {
	n := q.Runs[c.Run]
	if c.Number > n.Number {
		free := c.Tokens - q.Total + n.Taken - c.Floor
		more := max(0, min(c.Need, free), min(c.Want, int64(math.Floor(float64(free)/float64(3*c.Nodes)))))
		q.Total += c.Floor + more - n.Taken
		n.Number, n.Taken = c.Number, c.Floor+more
		q.Runs[c.Run] = n
		if c.Last == 1 {
			delete(q.Runs, c.Run)
		}
	}
	return []int64{n.Taken, q.Total}
}

// Members are the nodes of a fleet: the tick of each one's last heartbeat, times fleetSizes, and its parts.
type Members map[string]int64

const (
	tick       = 10_000
	fleetSizes = 16384
)

// Beat executes a heartbeat, and answers how many nodes there are, which share of each rate the silent ones may be using, and Redis' time.
func (m Members) Beat(node, state string, parts, latest, now int64) []int64 {
	score := func(ago, parts int64) int64 { return (now-ago)/tick*fleetSizes + parts }
	partsOf := func(score int64) int64 { return max(1, score%fleetSizes) }
	parts = min(parts, fleetSizes-1)
	switch {
	case state == "leaving":
		delete(m, node)
	case now > latest:
	case state == "present":
		m[node] = score(0, parts)
	default:
		m[node] = max(m[node], score(silentFor, parts))
	}
	share := int64(0)
	maps.DeleteFunc(m, func(_ string, at int64) bool { return at <= score(memberLife, 0) })
	for other, at := range m {
		if at >= score(-tick, 0) {
			m[other] = score(0, partsOf(at))
		} else if at <= score(silentFor, fleetSizes-1) {
			share += (token + partsOf(at) - 1) / partsOf(at)
		}
	}
	return []int64{int64(len(m)), min(share, token), now}
}
