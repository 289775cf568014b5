package lease

import (
	"fmt"
	"math"
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

// DemandSpan is the time constant of the fleet's demand, in microseconds: long enough to compare
// nodes, and short enough that a flood is soon forgotten.
const DemandSpan = 6_000_000
