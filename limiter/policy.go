package limiter

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"time"
)

// maxUnits bounds a full bucket, in units. Level, refill and their sum then
// stay below 2^53, so the script's doubles and Go's int64 hold the same exact
// integers.
const maxUnits = int64(1) << 52

// microsPerSecond: the limiter's time is in whole microseconds, as Redis' is.
const microsPerSecond = 1_000_000

// ErrPolicy wraps every reason for which NewPolicy refuses a rate and burst.
var ErrPolicy = errors.New("limiter: unusable policy")

// Policy is a rate and burst compiled to integers. A bucket counts in units:
// every microsecond adds r of them, a token costs p of them, so r/p is the rate
// in tokens per microsecond and nothing is ever rounded.
//
// Invariants of a Policy made by NewPolicy: p >= 1, Burst*p <= 2^52 and
// 0 <= r <= Burst*p. The zero Policy admits nothing, as rate 0 does.
type Policy struct {
	Rate  float64 // tokens per second, as given
	Burst int64   // tokens in a full bucket

	// Version orders the policies of one bucket over all nodes (0 to 2^53),
	// so that a node which has not yet heard of a change cannot undo it. Where it
	// is left 0, or went back with the database, a change takes effect when no
	// node has gone by the old policy for 10 to 20 s (left 0 and without Redis, at
	// once): nodes that disagree for a while cannot pull the bucket to and fro,
	// which would fill it or starve them.
	Version int64

	r int64 // units added per microsecond; 0 = blocked
	p int64 // units a token costs
}

// NewPolicy compiles rate (tokens per second) and burst (tokens). Rate 0 admits
// nothing. Its errors wrap ErrPolicy: rate negative or not finite, burst below
// 1, or a burst so large for so slow a rate that 2^52 units cannot hold it.
//
// The rate handed out is the simplest rational that the float stands for: 5.0/60
// is exactly 5 a minute (never more than 2^-51 above the float). Where its
// denominator is too large for the burst, it is the nearest one below.
func NewPolicy(rate float64, burst int64) (Policy, error) {
	switch {
	case math.IsNaN(rate) || math.IsInf(rate, 0):
		return Policy{}, fmt.Errorf("%w: rate %v is not finite", ErrPolicy, rate)
	case rate < 0:
		return Policy{}, fmt.Errorf("%w: rate %v is negative", ErrPolicy, rate)
	case burst < 1:
		return Policy{}, fmt.Errorf("%w: burst %d is below 1", ErrPolicy, burst)
	case burst > maxUnits:
		return Policy{}, fmt.Errorf("%w: burst %d is above 2^52", ErrPolicy, burst)
	}
	policy := Policy{Rate: rate, Burst: burst, p: 1}
	switch {
	case rate == 0:
		return policy, nil
	case rate >= float64(burst)*microsPerSecond:
		policy.r = burst // full again after every microsecond: faster makes no difference
		return policy, nil
	}

	perMicro := new(big.Rat).SetFloat64(rate)
	perMicro.Quo(perMicro, big.NewRat(microsPerSecond, 1))
	limit := big.NewInt(maxUnits / burst) // of p
	x := simplest(scaled(perMicro, 1<<51-1, 1<<51), scaled(perMicro, 1<<51+1, 1<<51))
	if x.Denom().Cmp(limit) > 0 {
		x = nearestBelow(perMicro, limit)
		if x.Cmp(scaled(perMicro, 999, 1000)) < 0 {
			return Policy{}, fmt.Errorf("%w: burst %d is too large for rate %v: no rate within 0.1 %% below fits 2^52 units", ErrPolicy, burst, rate)
		}
	}
	policy.r, policy.p = x.Num().Int64(), x.Denom().Int64()
	return policy, nil
}

// units of a full bucket.
func (p Policy) units() int64 { return p.Burst * p.p }

// sameLimits: equal whatever the version and the way the rate was written.
func (p Policy) sameLimits(q Policy) bool { return p.r == q.r && p.p == q.p && p.Burst == q.Burst }

func scaled(x *big.Rat, num, den int64) *big.Rat {
	return new(big.Rat).Mul(x, big.NewRat(num, den))
}

// simplest returns the rational with the smallest denominator in [lo, hi],
// 0 < lo <= hi, by continued fractions.
func simplest(lo, hi *big.Rat) *big.Rat {
	whole := new(big.Int).Quo(lo.Num(), lo.Denom())
	floor := new(big.Rat).SetInt(whole)
	if floor.Cmp(lo) == 0 {
		return floor
	}
	if next := new(big.Rat).Add(floor, big.NewRat(1, 1)); next.Cmp(hi) <= 0 {
		return next
	}
	// Both ends share the whole part: recurse on the reciprocals of the rest.
	rest := simplest(
		new(big.Rat).Inv(new(big.Rat).Sub(hi, floor)),
		new(big.Rat).Inv(new(big.Rat).Sub(lo, floor)))
	return floor.Add(floor, rest.Inv(rest))
}

// nearestBelow returns the largest rational <= x whose denominator is at most
// limit. It walks the Stern-Brocot tree between lo <= x < hi, whole runs of
// equal steps at a time.
func nearestBelow(x *big.Rat, limit *big.Int) *big.Rat {
	type fraction struct{ num, den *big.Int }
	lo := fraction{big.NewInt(0), big.NewInt(1)}
	hi := fraction{big.NewInt(1), big.NewInt(0)}
	// gap(f) = |x - f| * f.den * x.den: how far f is from x, as an integer.
	gap := func(f fraction) *big.Int {
		a := new(big.Int).Mul(x.Num(), f.den)
		return a.Sub(a, new(big.Int).Mul(f.num, x.Denom())).Abs(a)
	}
	// room is how many more steps towards f the denominator of g allows.
	room := func(g, f fraction) *big.Int {
		if f.den.Sign() == 0 {
			return nil // no bound
		}
		left := new(big.Int).Sub(limit, g.den)
		return left.Quo(left, f.den)
	}
	step := func(g, f fraction, k *big.Int) fraction {
		return fraction{
			new(big.Int).Add(g.num, new(big.Int).Mul(k, f.num)),
			new(big.Int).Add(g.den, new(big.Int).Mul(k, f.den))}
	}
	smaller := func(a, b *big.Int) *big.Int {
		if b != nil && b.Cmp(a) < 0 {
			return b
		}
		return a
	}
	for {
		k := smaller(new(big.Int).Quo(gap(lo), gap(hi)), room(lo, hi))
		lo = step(lo, hi, k)
		below := gap(lo)
		if below.Sign() == 0 { // lo == x
			break
		}
		// hi must stay above x: one step fewer where the division is exact.
		up := new(big.Int).Sub(gap(hi), big.NewInt(1))
		j := smaller(up.Quo(up, below), room(hi, lo))
		if k.Sign() == 0 && j.Sign() == 0 {
			break
		}
		hi = step(hi, lo, j)
	}
	return new(big.Rat).SetFrac(lo.num, lo.den)
}

func micros(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Microsecond
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
