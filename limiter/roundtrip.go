package limiter

import "sync/atomic"

// mostWait bounds what a request waits for a slow Redis, and how old an answer
// may be whose tokens are granted, not leased (microseconds).
const mostWait = 125_000

// roundTrip is how long Redis takes to answer, as last measured. What a request
// waits for it, how far ahead leases are taken and how tokens are taken follow
// from it. It rises at once and falls slowly. Times are in microseconds.
type roundTrip struct {
	budget int64 // a request waits that long at least
	recent atomic.Int64
}

// note takes a measurement.
func (r *roundTrip) note(took int64) {
	recent := r.recent.Load()
	r.recent.Store(max(took, recent-(recent-took)/8))
}

// wait is how long a request waits for an answer: two round trips, since the
// one under way may have left without it.
func (r *roundTrip) wait() int64 { return max(r.budget, min(2*r.recent.Load(), mostWait)) }

// slow reports whether answers come so late that what the rate brings meanwhile
// counts: tokens are then leased, not granted.
func (r *roundTrip) slow() bool { return r.wait() > r.budget }
