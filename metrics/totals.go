package metrics

import (
	"sync/atomic"

	"listedge/internal/histogram"
	"listedge/internal/lists"
)

// Totals are the numbers of requests since the start that the status page shows.
type Totals struct {
	Requests, Refused, Failed uint64 // all; answered with 429; answered with 500 or 503
	Pages                     [tiers]uint64
	Latencies                 [outcomes]histogram.Snapshot // of lists, by outcome
}

// Totals sums up the counters.
func (e *Edge) Totals() (t Totals) {
	for route := range routes {
		for i := range len(statuses) + 1 {
			n := e.sum(func(s *Stripe) *atomic.Uint64 { return &s.answers[route][i] })
			t.Requests += n
			if i == len(statuses) {
				continue
			}
			switch statuses[i] {
			case 429:
				t.Refused += n
			case 500, 503:
				t.Failed += n
			}
		}
	}
	for tier := range tiers {
		t.Pages[tier] = e.sum(func(s *Stripe) *atomic.Uint64 { return &s.pages[tier] })
	}
	for _, c := range lists.All {
		for outcome := OutcomeMemory; outcome <= OutcomeNotModified; outcome++ {
			s := e.Latency(RouteOf(c), outcome)
			t.Latencies[outcome].Merge(&s)
		}
	}
	return t
}
