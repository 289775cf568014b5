package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"listedge/cache"
)

func (n *nodeState) follows() bool { return n.metrics.Sum("listedge_freshness_follower") == 1 }

// fleetSize is how many nodes this node counts; 0 = it does not know, or runs without
// Redis.
func (n *nodeState) fleetSize() int64 { return int64(n.metrics.Sum("listedge_limiter_nodes")) }

// isNew reports whether the node has just started: others do not count it yet.
func (n nodeState) isNew() bool {
	const settles = 10 * time.Second
	return n.err == nil && time.Since(time.Unix(int64(n.metrics.Sum("process_start_time_seconds")), 0)) < settles
}

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

// checkNode reports how one node is: what its own checks find, in the words of /readyz.
func (r *report) checkNode(n *nodeState) {
	subject, failing := "node "+n.name, n.failingChecks()
	switch {
	case n.err != nil:
		r.fail(subject, n.err.Error(), "see whether it runs, its log, and whether --node names its admin listener")
	case n.readiness.Draining:
		r.warn(subject, "it is draining: not ready, and still answering", "nothing, if it is being replaced")
	case !n.readiness.Ready:
		r.fail(subject, "not ready: "+failing, "fix what it names")
	case n.readiness.Mode == cache.ModeUntrusted.String() && n.isNew():
		r.warn(subject, "it has just started, and has no proof yet that its pages are fresh", "check again")
	case n.readiness.Mode == cache.ModeUntrusted.String():
		r.fail(subject, "it serves no page from a cache as fresh: "+failing, "fix what it names")
	case failing != "":
		r.warn(subject, "ready, although a check fails: "+failing, "fix what it names")
	default:
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
	parts := []string{n.version(), "ready", "pages expire by age"}
	if n.readiness.Mode == cache.ModeFollowed.String() {
		age := time.Duration(n.metrics.Sum("listedge_freshness_proof_age_seconds") * float64(time.Second))
		parts[2] = fmt.Sprintf("proof of freshness %s old", age.Round(time.Millisecond))
	}
	if n.follows() {
		parts = append(parts, "the follower")
	}
	if !n.withRedis() {
		return strings.Join(append(parts, "without Redis"), ", ")
	}
	return strings.Join(append(parts, fmt.Sprintf("one of %d nodes", n.fleetSize())), ", ")
}
