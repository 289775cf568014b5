package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"listedge/cache"
)

// mostSkew is how much clocks may differ without a finding.
const mostSkew = 2 * time.Second

// seconds is a metric in seconds, as a duration.
func (n *nodeState) seconds(name string) time.Duration {
	return time.Duration(n.metrics.Sum(name) * float64(time.Second)).Round(time.Millisecond)
}

// bound is --freshness-bound of the node; 0 = it does not follow changes.
func (n *nodeState) bound() time.Duration { return n.seconds("listedge_freshness_bound_seconds") }
func (n *nodeState) proofAge() time.Duration {
	return n.seconds("listedge_freshness_proof_age_seconds")
}
func (n *nodeState) follows() bool           { return n.metrics.Sum("listedge_freshness_follower") == 1 }
func (n *nodeState) in(mode cache.Mode) bool { return n.readiness.Mode == mode.String() }

// fleetSize is how many nodes this node counts; 0 = it does not know, or runs without
// Redis.
func (n *nodeState) fleetSize() int64 { return int64(n.metrics.Sum("listedge_limiter_nodes")) }

func (n *nodeState) withRedis() bool {
	_, checked := n.readiness.Checks["redis"]
	return checked
}

func (n *nodeState) version() string {
	return versionText(n.metrics.Label("listedge_build_info", "version"), n.metrics.Label("listedge_build_info", "revision"))
}

// versionText is a program's version with the beginning of its revision.
func versionText(version, revision string) string {
	return version + " (" + revision[:min(len(revision), 10)] + ")"
}

// checkNode reports what is wrong with one node, or one finding that says how it is.
func (r *report) checkNode(n *nodeState) {
	before, subject := len(*r), "node "+n.name
	if n.err != nil {
		r.fail(subject, n.err.Error(), "see whether it runs, its log, and whether --node names its admin listener")
		return
	}
	switch failing := n.failingChecks(); {
	case n.readiness.Draining:
		r.warn(subject, "it is draining: not ready, and still answering", "nothing, if it is being replaced")
	case !n.readiness.Ready:
		r.fail(subject, "not ready: "+failing, "fix what it names; `listedge migrate up` if it is the schema")
	case failing != "":
		r.warn(subject, "ready, although a check fails: "+failing, "fix what it names")
	}
	switch {
	case n.bound() == 0: // by its settings
	case n.in(cache.ModeTTL):
		r.warn(subject, "its pages expire after --cache-ttl, although --freshness-bound is set", "fix the findings on Postgres, or set --freshness-bound 0")
	case n.in(cache.ModeUntrusted) && n.readiness.Ready:
		r.fail(subject, "it serves no page from a cache as fresh: it has no proof that it has seen all changes",
			"see ListedgeFreshnessUntrusted in the runbook, unless it has just started")
	case n.in(cache.ModeFollowed) && n.proofAge() > n.bound():
		r.warn(subject, fmt.Sprintf("its last proof is %s old, and --freshness-bound %s: it serves no page from a cache as fresh", n.proofAge(), n.bound()),
			"see ListedgeFollowerLags in the runbook")
	}
	if n.ahead.Abs() > mostSkew {
		direction := "ahead of"
		if n.ahead < 0 {
			direction = "behind"
		}
		r.warn(subject, fmt.Sprintf("its clock is %s %s the one here", n.ahead.Abs().Round(time.Second), direction),
			"run a time service on both: the node judges by its clock which keys have expired")
	}
	if len(*r) == before {
		r.ok(subject, n.summary())
	}
}

// failingChecks are the checks of /readyz that fail.
func (n *nodeState) failingChecks() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(n.readiness.Checks)) {
		if what := n.readiness.Checks[name]; what != "ok" {
			all = append(all, name+": "+what)
		}
	}
	return strings.Join(all, "; ")
}

func (n *nodeState) summary() string {
	parts := []string{n.version(), "ready", fmt.Sprintf("proof of freshness %s old", n.proofAge())}
	if n.bound() == 0 {
		parts[2] = "pages expire by age"
	}
	if n.follows() {
		parts = append(parts, "the follower")
	}
	if !n.withRedis() {
		return strings.Join(append(parts, "without Redis"), ", ")
	}
	return strings.Join(append(parts, fmt.Sprintf("one of %d nodes", n.fleetSize())), ", ")
}
