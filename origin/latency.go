package origin

import (
	"errors"
	"time"

	"listedge/internal/histogram"
)

// latencies are how long the queries of one server took, by outcome.
type latencies struct{ ok, timeout, failed histogram.Histogram }

func (l *latencies) observe(err error, took time.Duration) {
	switch {
	case err == nil:
		l.ok.Observe(took)
	case errors.Is(err, ErrTimeout):
		l.timeout.Observe(took)
	default:
		l.failed.Observe(took)
	}
}

// Latency is how long the queries of one server with one outcome took.
type Latency struct {
	Server  string // primary, or the address of a standby
	Outcome string // ok, timeout or failed
	Took    histogram.Snapshot
}

// stats returns the outcomes that have occurred, and always ok.
func (l *latencies) stats(server string) (all []Latency) {
	for _, o := range []struct {
		name  string
		times *histogram.Histogram
	}{{"ok", &l.ok}, {"timeout", &l.timeout}, {"failed", &l.failed}} {
		var took histogram.Snapshot
		if took.Add(o.times); took.Count > 0 || o.name == "ok" {
			all = append(all, Latency{server, o.name, took})
		}
	}
	return all
}
