package world

import (
	"encoding/binary"
	"math"
)

// What those who judge limits read of them: token_bucket.lua of package limiter has the fields, the units, the invariants and the reasons.

// Bucket is what Redis has of a token bucket, in the order in which it is stored.
type Bucket struct {
	Level, RefilledAt, ClockLag, HeldNow, HeldBefore, UsedIn, Demand, Withheld int64

	Version, Rate, Burst int64 // the policy in force
}

// BucketCall is one call of the script, in the order of its arguments.
type BucketCall struct {
	Rate, Burst, Version, Need, Hold, Extra, Arrived, Fair, Slice, ReleasedNow, ReleasedBefore, Returned, Debt, Nodes, Silent, Until int64
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

// Held is how many tokens count as held at a time of Redis: those that were leased in this slice of time, and in the one before.
func (b *Bucket) Held(now int64) int64 {
	ticks := b.RefilledAt + b.ClockLag
	switch (ticks+max(0, now-b.RefilledAt))/ofSlice - ticks/ofSlice {
	case 0:
		return b.HeldNow + b.HeldBefore
	case 1:
		return b.HeldNow
	}
	return 0
}

const ofSlice = 10_000_000 // microseconds

// Sound reports whether the bucket keeps its invariants.
func (b *Bucket) Sound() bool {
	for _, n := range []int64{b.RefilledAt, b.ClockLag, b.HeldNow, b.HeldBefore, b.UsedIn + 1, b.Demand, b.Withheld, b.Version, b.Rate} {
		if n < 0 || n > 1<<53 {
			return false
		}
	}
	const token, maxUnits = 1_000_000, 1 << 52
	ticks := b.RefilledAt + b.ClockLag
	return b.Rate <= maxUnits && b.Burst >= 1 && b.Burst <= maxUnits/token && ticks <= maxUnits && b.UsedIn <= ticks/ofSlice &&
		b.Level >= -(b.Burst/4*token) && b.Level+b.Withheld <= max(0, b.Burst-b.HeldNow-b.HeldBefore)*token
}
