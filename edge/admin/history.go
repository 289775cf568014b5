package admin

import (
	"context"
	"sync"
	"time"

	"listedge/metrics"
)

const (
	// historyInterval is the time from one point of the history to the next. A point covers
	// one interval.
	historyInterval = 5 * time.Second
	historyPoints   = 720 // an hour
)

// Reading is the state of the counters at a moment. A point of the history is the difference
// of two readings.
type Reading struct {
	metrics.Totals
	ProofAge         time.Duration // negative = changes are not followed
	Queries, Lookups uint64        // of pages, in Postgres; of keys, in the node
	Memory           int64         // bytes of the cache
}

// Point is one interval of the history.
type Point struct {
	N        uint64   `json:"n"` // its number since the start
	At       int64    `json:"at"`
	Requests float64  `json:"requests"` // per second
	Refused  float64  `json:"refused"`  // likewise
	Failed   float64  `json:"failed"`   // likewise
	Pages    float64  `json:"pages"`    // likewise
	Queries  float64  `json:"queries"`  // of pages, in Postgres; likewise
	Lookups  float64  `json:"lookups"`  // of keys, in the node; likewise
	Memory   int64    `json:"memory"`   // bytes of the cache
	Hits     *float64 `json:"hits"`     // share of pages from memory or Redis; null = there were no pages
	P50      *float64 `json:"p50"`      // seconds; null = there were no pages
	P99      *float64 `json:"p99"`      // as P50
	Proof    *float64 `json:"proof"`    // age of the last proof in seconds; null = changes are not followed
}

// Quantiles are the latencies of one outcome in the last interval, in seconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// History has the points of the last hour, in a ring.
type History struct {
	read func() Reading

	mu        sync.Mutex // guards all below
	ring      [historyPoints]Point
	n         uint64               // points so far
	quantiles map[string]Quantiles // of the last point, by outcome
}

// NewHistory makes an empty history. read is called every historyInterval.
func NewHistory(read func() Reading) *History { return &History{read: read} }

// Run adds a point per interval until ctx ends.
func (h *History) Run(ctx context.Context) {
	before, at := h.read(), time.Now()
	tick := time.NewTicker(historyInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		after, now := h.read(), time.Now()
		h.add(&before, &after, now.Sub(at), now)
		before, at = after, now
	}
}

func (h *History) add(before, after *Reading, took time.Duration, now time.Time) {
	rate := func(of func(*Reading) uint64) float64 { return float64(of(after)-of(before)) / took.Seconds() }
	p := Point{At: now.Unix(), Memory: after.Memory,
		Requests: rate(func(r *Reading) uint64 { return r.Requests }),
		Refused:  rate(func(r *Reading) uint64 { return r.Refused }),
		Failed:   rate(func(r *Reading) uint64 { return r.Failed }),
		Pages:    rate(func(r *Reading) uint64 { return r.Totals.Pages }),
		Queries:  rate(func(r *Reading) uint64 { return r.Queries }),
		Lookups:  rate(func(r *Reading) uint64 { return r.Lookups })}
	if pages := after.Pages - before.Pages; pages > 0 {
		p.Hits = new(float64(after.Hits-before.Hits) / float64(pages))
	}
	all := metrics.Buckets{}
	quantiles := map[string]Quantiles{}
	for outcome := range after.Latencies {
		b := metrics.Buckets{}
		b.Add(after.Latencies[outcome], before.Latencies[outcome])
		all.Add(b, nil)
		addQuantiles(quantiles, outcome, b)
	}
	if addQuantiles(quantiles, "all", all) {
		q := quantiles["all"]
		p.P50, p.P99 = &q.P50, &q.P99
	}
	if after.ProofAge >= 0 {
		p.Proof = new(after.ProofAge.Seconds())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
	p.N = h.n
	h.ring[h.n%historyPoints], h.quantiles = p, quantiles
}

// addQuantiles adds an outcome that has occurred.
func addQuantiles(all map[string]Quantiles, outcome string, b metrics.Buckets) bool {
	p50, ok := b.Quantile(.5)
	p99, _ := b.Quantile(.99)
	if ok {
		all[outcome] = Quantiles{p50, p99}
	}
	return ok
}

// After returns the points whose number is larger, the oldest first.
func (h *History) After(n uint64) (points []Point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n > h.n { // the number is from before a restart of this node
		n = 0
	}
	if h.n > historyPoints {
		n = max(n, h.n-historyPoints)
	}
	points = make([]Point, 0, h.n-n)
	for n++; n <= h.n; n++ {
		points = append(points, h.ring[n%historyPoints])
	}
	return points
}

// Latest returns the last point, and the quantiles of its outcomes.
func (h *History) Latest() (Point, map[string]Quantiles) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ring[h.n%historyPoints], h.quantiles
}
