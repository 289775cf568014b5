//go:build !race

package limiter_test

import (
	. "listedge/limiter"
	"listedge/limiter/lease"
)

// oracle checks the promise that over any span of t seconds at most burst + rate*t requests
// are admitted. Its unit is a millionth of a micro-token.
type oracle struct {
	policy   Policy
	admitted int64
	lowest   int64 // the smallest value, before any admission, of admitted minus what was refilled until then
}

const scaled = lease.Token * 1_000_000

// start sets the earliest moment at which a span may begin: 0, if it is not called.
func (o *oracle) start(now int64) { o.lowest = o.admitted*scaled - now*o.policy.Rate }

// admit records an admission. It returns by how many tokens the worst span that ends with it
// exceeds the promise; 0 or less = no span does.
func (o *oracle) admit(now int64) float64 {
	before := o.admitted*scaled - now*o.policy.Rate
	o.lowest = min(o.lowest, before)
	o.admitted++
	return float64(before+scaled-o.lowest-o.policy.Burst*scaled) / scaled
}

// exact is a single bucket that decides every request at once.
type exact struct{ twin }

func exactly(p Policy) exact { return exact{fullTwin(p, 0)} }

// take decides one request.
func (e *exact) take(now int64) bool {
	c := lease.Call{Policy: e.Policy, Need: 1}
	e.execute(&c, now)
	return c.Granted == 1
}

// result compares the decisions of a fleet with those of an exact bucket.
type result struct {
	over   float64 // tokens above the promise, in the worst span
	short  float64 // share of the requests that the fleet admits fewer than the exact bucket
	share  float64 // what the fleet admits, as a share of what the exact bucket admits
	waited float64 // share of the requests that waited
	calls  float64 // calls to Redis per request
	broken bool    // a breaker has opened
}

// measure runs a shape of traffic over the world until span, and compares it with
// an exact bucket that has the same arrivals.
func (w *world) measure(s shape, span int64) (r result) {
	exact, ideal, before := exactly(w.policy), int64(0), w.calls.Load()
	w.traffic(func(w *world) (int64, int64) {
		if exact.take(w.now()) {
			ideal++
		}
		return s(w)
	}, span)
	w.run(span + 1_000_000) // the last answers
	for _, n := range w.nodes {
		r.broken = r.broken || n.limiter.Stats().Degraded > 0
	}
	offered := float64(w.offered)
	r.over, r.short, r.share = w.over, float64(ideal-w.admitted)/offered, float64(w.admitted)/float64(ideal)
	r.waited, r.calls = float64(w.waited)/offered, float64(w.calls.Load()-before)/offered
	return r
}

// admittedAfter counts the requests that are admitted after that time.
func (w *world) admittedAfter(from int64) *float64 {
	admitted := new(float64)
	w.decided = func(_ *node, d Decision) {
		if d.Allowed && w.now() > from {
			*admitted++
		}
	}
	return admitted
}

// refused is the share of the requests that the fleet has refused, in percent.
func (w *world) refused() float64 { return 100 * (1 - float64(w.admitted)/float64(w.offered)) }
