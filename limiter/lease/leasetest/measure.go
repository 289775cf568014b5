package leasetest

import "listedge/limiter/lease"

// Oracle checks the promise that over any span of t seconds at most burst + rate*t requests
// are admitted. Its unit is a millionth of a micro-token.
type Oracle struct {
	Policy   lease.Policy
	Admitted int64
	Lowest   int64 // the smallest value, before any admission, of Admitted minus what was refilled until then
}

const scaled = lease.Token * 1_000_000

// Start sets the earliest moment at which a span may begin: 0, if it is not called.
func (o *Oracle) Start(now int64) { o.Lowest = o.Admitted*scaled - now*o.Policy.Rate }

// Admit records an admission. It returns by how many tokens the worst span that ends with it
// exceeds the promise; 0 or less = no span does.
func (o *Oracle) Admit(now int64) float64 {
	before := o.Admitted*scaled - now*o.Policy.Rate
	o.Lowest = min(o.Lowest, before)
	o.Admitted++
	return float64(before+scaled-o.Lowest-o.Policy.Burst*scaled) / scaled
}

// Exact is a single bucket that decides every request at once.
type Exact struct {
	Bucket Bucket
	Policy lease.Policy
}

// Take decides one request.
func (e *Exact) Take(now int64) bool {
	if e.Bucket.Policy.Burst == 0 {
		e.Bucket = Full(e.Policy, now)
	}
	c := lease.Call{Policy: e.Policy, Need: 1}
	e.Bucket.Execute(&c, now)
	return c.Granted == 1
}

// Result compares the decisions of a fleet with those of an Exact bucket.
type Result struct {
	Over   float64 // tokens above the promise, in the worst span
	Short  float64 // share of the requests that the fleet admits fewer than the exact bucket
	Share  float64 // what the fleet admits, as a share of what the exact bucket admits
	Waited float64 // share of the requests that waited
	Calls  float64 // calls to Redis per request
	Broken int     // how often a breaker opened
}

// Measure runs a shape of traffic over the world until span, and compares it with
// an exact bucket that has the same arrivals.
func (w *World) Measure(s Shape, span int64) Result {
	exact, ideal := Exact{Policy: w.Policy}, int64(0)
	w.Traffic(func(w *World) (int64, int64) {
		if exact.Take(w.Now) {
			ideal++
		}
		return s(w)
	}, span)
	w.Run(span + 1_000_000) // the last answers
	offered := float64(w.Offered)
	return Result{Over: w.Over, Short: float64(ideal-w.Admitted) / offered, Share: float64(w.Admitted) / float64(ideal),
		Waited: float64(w.Waited) / offered, Calls: float64(w.Calls) / offered, Broken: w.Broken}
}

// Refused is the share of the requests that the fleet has refused, in percent.
func (w *World) Refused() float64 { return 100 * (1 - float64(w.Admitted)/float64(w.Offered)) }
