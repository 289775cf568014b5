package lease

import "math"

const (
	// All in microseconds.
	prefetchAhead = 2_000     // the next lease is fetched this long before the present one is spent
	minIdle       = 100_000   // an idle lease of a busy key is given back after this time,
	maxIdle       = 2 * Slice // one of a key with few requests ends by itself before that

	sparse = 4 // fewer requests in a Slice: a key with few requests
)

// demand counts the requests at this node. It expects as many in the next Slice as in
// the last one.
type demand struct {
	at     int64   // when record was last called
	recent float32 // requests in one Slice
	own    float32 // requests in the last DemandSpan, decaying, as the bucket counts those of all nodes
}

// record counts n requests since the last call. recent is a sliding window.
func (d *demand) record(n float32, now int64) {
	dt := max(0, now-d.at)
	d.at = max(d.at, now)
	d.own = d.own*float32(max(0, DemandSpan-dt))/DemandSpan + n
	if dt >= Slice {
		d.recent = n * Slice / float32(dt)
		return
	}
	d.recent = n + d.recent*(1-float32(dt)/Slice)
}

// expected is how many requests to lease tokens for: those of the next 1.25 s, but at
// least the square root of recent. A key with few requests gets few tokens, to keep until
// the lease ends.
func (d *demand) expected(few int64) int64 {
	if d.recent < sparse {
		return few
	}
	return int64(math.Ceil(max(float64(d.recent)/8, math.Sqrt(float64(d.recent)))))
}

// lowWater is how many tokens are spent while the next lease is fetched.
func (d *demand) lowWater(roundTrip int64) int64 {
	return int64(math.Ceil(float64(d.recent) * float64(prefetchAhead+roundTrip) / Slice))
}

// idleAfter is how long a lease may be unused before it is given back: four times the
// mean time between two requests, within minIdle and maxIdle.
func (d *demand) idleAfter() int64 {
	return int64(max(minIdle, min(maxIdle, 4*Slice/max(1, d.recent))))
}
