package origin

import (
	"errors"
	"time"

	"listedge/internal/histogram"
)

// queryOutcome is how a query ended at its server.
type queryOutcome uint8

const (
	queryOK queryOutcome = iota
	queryTimeout
	queryFailed
	queryOutcomes
)

func (o queryOutcome) String() string { return [...]string{"ok", "timeout", "failed"}[o] }

// latencies are how long the queries of one server took.
type latencies [queryOutcomes]histogram.Histogram

func (l *latencies) observe(err error, took time.Duration) {
	outcome := queryOK
	switch {
	case errors.Is(err, ErrTimeout):
		outcome = queryTimeout
	case err != nil:
		outcome = queryFailed
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
	for outcome := range queryOutcomes {
		var took histogram.Snapshot
		if took.Add(&l[outcome]); took.Count > 0 || outcome == queryOK {
			all = append(all, Latency{server, outcome.String(), took})
		}
	}
	return all
}
