package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"listedge/cache"
	"listedge/origin"
)

// mostSkew is by how much clocks may differ before it is told.
const mostSkew = 2 * time.Second

func (n *nodeSeen) seconds(name string) time.Duration {
	return time.Duration(n.metrics.Sum(name) * float64(time.Second)).Round(time.Millisecond)
}

func (n *nodeSeen) bound() time.Duration    { return n.seconds("listedge_freshness_bound_seconds") }
func (n *nodeSeen) proofAge() time.Duration { return n.seconds("listedge_freshness_proof_age_seconds") }
func (n *nodeSeen) follows() bool           { return n.metrics.Sum("listedge_freshness_follower") == 1 }
func (n *nodeSeen) in(mode cache.Mode) bool { return n.readiness.Mode == mode.String() }

// nodes is how many there are in its fleet, as the node has counted; 0 = it
// does not know, or runs without Redis.
func (n *nodeSeen) nodes() int64 { return int64(n.metrics.Sum("listedge_limiter_nodes")) }

func (n *nodeSeen) withRedis() bool {
	_, checked := n.readiness.Checks["redis"]
	return checked
}

// version is that of the program, with its revision as far as people read it.
func (n *nodeSeen) version() string {
	revision := n.metrics.Label("listedge_build_info", "revision")
	return n.metrics.Label("listedge_build_info", "version") + " (" + revision[:min(len(revision), 10)] + ")"
}

// notesDo says what to do about what /readyz notes.
var notesDo = map[string]string{
	"trusted-proxies": "name the network of your load balancers in --trusted-proxies; nothing, if that is none of yours",
	"shared-redis":    otherFleetsDo,
}

// judge is what is wrong with one node, or one finding that says how it is.
func (n *nodeSeen) judge() (findings []origin.Finding) {
	say := func(level origin.Level, text, do string) {
		findings = append(findings, origin.Finding{Subject: "node " + n.name, Level: level, Text: text, Do: do})
	}
	if n.err != nil {
		say(origin.Fail, n.err.Error(), "see whether it runs, its log, and whether --node names its admin listener")
		return findings
	}
	switch r := n.readiness; {
	case r.Draining:
		say(origin.Warn, "it is leaving: no longer ready, and answers what still comes", "nothing, if it is being replaced")
	case !r.Ready:
		say(origin.Fail, "not ready: "+n.complaints(), "mend what it names; `listedge migrate up` if it is the schema")
	case n.complaints() != "":
		say(origin.Warn, "ready, and goes on without: "+n.complaints(), "mend what it names")
	}
	for _, name := range slices.Sorted(maps.Keys(n.readiness.Notes)) {
		say(origin.Warn, name+": "+n.readiness.Notes[name], notesDo[name])
	}
	switch {
	case n.bound() == 0: // by its settings
	case n.in(cache.ModeTTL):
		say(origin.Warn, "its pages live --cache-ttl, though it is to follow changes", "mend what is said of Postgres, or set --freshness-bound 0")
	case n.in(cache.ModeUntrusted) && n.readiness.Ready:
		say(origin.Fail, "it takes no page from a cache: it has no proof that it has seen all changes", "see ListedgeFreshnessUntrusted in the runbook, unless it has just started")
	case n.in(cache.ModeFollowed) && n.proofAge() > n.bound():
		say(origin.Warn, fmt.Sprintf("its last proof is %s old, and --freshness-bound %s: its pages are read anew", n.proofAge(), n.bound()), "see ListedgeFollowerLags in the runbook")
	}
	for _, left := range []struct{ metric, text, do string }{
		{"listedge_limiter_breaker_open", "it decides limits without Redis, which kept failing", "see ListedgeLimiterDegraded in the runbook"},
		{"listedge_origin_breaker_open", "it leaves Postgres alone, which kept failing", "see ListedgeOriginLeftAlone in the runbook"},
		{"listedge_key_breaker_open", "it looks no key up, because Postgres kept failing", "see ListedgeKeysLeftAlone in the runbook"},
		{"listedge_origin_replica_breakers_open", "it leaves a replica alone, which kept failing", "look at the replicas with --replica-url"},
	} {
		if n.metrics.Sum(left.metric) > 0 {
			say(origin.Warn, left.text, left.do)
		}
	}
	if n.ahead.Abs() > mostSkew {
		direction := "ahead of"
		if n.ahead < 0 {
			direction = "behind"
		}
		say(origin.Warn, fmt.Sprintf("its clock is %s %s the one here", n.ahead.Abs().Round(time.Second), direction), "run a time service on both: keys expire by it")
	}
	if len(findings) == 0 {
		say(origin.OK, n.summary(), "")
	}
	return findings
}

// complaints are the checks of /readyz that fail.
func (n *nodeSeen) complaints() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(n.readiness.Checks)) {
		if what := n.readiness.Checks[name]; what != "ok" {
			all = append(all, name+": "+what)
		}
	}
	return strings.Join(all, "; ")
}

func (n *nodeSeen) summary() string {
	parts := []string{n.version(), "ready"}
	if n.bound() == 0 {
		parts = append(parts, "pages live by age")
	} else {
		parts = append(parts, fmt.Sprintf("proof of freshness %s old", n.proofAge()))
	}
	if n.follows() {
		parts = append(parts, "the follower")
	}
	if !n.withRedis() {
		return strings.Join(append(parts, "without Redis"), ", ")
	}
	return strings.Join(append(parts, fmt.Sprintf("one of %d nodes", n.nodes())), ", ")
}
