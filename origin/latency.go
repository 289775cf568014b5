package origin

import (
	"errors"
	"time"

	"listedge/internal/histogram"
)

// outcomes of queries.
var outcomes = [...]string{"ok", "timeout", "failed"}

// latencies are how long the queries of one server took, by outcome.
type latencies [len(outcomes)]histogram.Histogram

func (l *latencies) observe(err error, took time.Duration) {
	outcome := 0
	if errors.Is(err, ErrTimeout) {
		outcome = 1
	} else if err != nil {
		outcome = 2
	}
	l[outcome].Observe(took)
}

// Latency is how long the queries of one server with one outcome took.
type Latency struct {
	Server  string // primary, or the address of a standby
	Outcome string // ok, timeout or failed
	Took    histogram.Snapshot
}

// stats returns the outcomes that have occurred, and always ok.
func (l *latencies) stats(server string) (all []Latency) {
	for i, outcome := range outcomes {
		var took histogram.Snapshot
		if took.Add(&l[i]); took.Count > 0 || i == 0 {
			all = append(all, Latency{server, outcome, took})
		}
	}
	return all
}
