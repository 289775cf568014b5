package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"listedge/cache"
	edgeadmin "listedge/edge/admin"
	"listedge/origin/admin"
)

func (n *nodeState) withRedis() bool {
	return slices.ContainsFunc(n.Checks, func(c edgeadmin.CheckState) bool { return c.Name == "Redis" })
}

func (n *nodeState) untrusted() bool { return n.self.Mode == cache.ModeUntrusted.String() }

// versionText is a node's version with the beginning of its revision.
func versionText(n edgeadmin.NodeState) string {
	return n.Version + " (" + n.Revision[:min(len(n.Revision), 10)] + ")"
}

// checkNode reports whether one node answers, is ready, and serves fresh pages.
func (r *report) checkNode(n *nodeState) {
	subject := "node " + n.name
	level, todo := admin.Fail, "mend what the findings on its checks name, and check again"
	if !slices.ContainsFunc(n.Checks, func(c edgeadmin.CheckState) bool { return c.Why != "" }) {
		level, todo = admin.Warn, "check again: no check says why, as just after a start"
	}
	switch {
	case n.err != nil:
		r.add(subject, admin.Fail, n.err.Error(), "see whether it runs, its log, and whether --node names its admin listener")
	case n.Draining:
		r.add(subject, admin.Warn, "it is draining: not ready, and still answering", "nothing, if it is being replaced")
	case !n.self.Ready:
		r.add(subject, level, "not ready", todo)
	case n.untrusted():
		r.add(subject, level, "it serves no page from a cache as fresh", todo)
	default:
		r.add(subject, admin.OK, n.summary(), "")
	}
}

// checkChecks reports what the nodes' own checks found, in their words: once for all nodes that
// say the same. It leaves out what the doctor has found itself, and what another failure explains.
func (r *report) checkChecks(nodes []nodeState) {
	on := map[admin.Finding]string{}
	var found report
	for i := range nodes {
		n := &nodes[i]
		for _, c := range n.Checks {
			f := admin.Finding{Subject: strings.ToLower(c.Name), Level: admin.Warn, Text: c.Why, Remedy: c.WhatToDo()}
			if (c.Light || c.Effect > edgeadmin.Reported) && (!n.self.Ready || n.untrusted()) {
				f.Level = admin.Fail
			}
			if c.Broken != "" {
				f.Text = c.Broken + ": " + c.Why
			}
			if c.Why == "" || c.Follows || slices.ContainsFunc(*r, func(o admin.Finding) bool { return o.Subject == f.Subject && o.Level != admin.OK }) {
				continue
			}
			if on[f] == "" {
				found = append(found, f)
			}
			on[f] += ", on " + n.name
		}
	}
	for _, f := range found {
		r.add(f.Subject, f.Level, f.Text+on[f], f.Remedy)
	}
}

func (n *nodeState) summary() string {
	parts := []string{versionText(n.self), "ready", "pages expire by age"}
	if proof := n.self.Proof; proof != nil {
		parts[2] = fmt.Sprintf("proof of freshness %s old", time.Duration(*proof*float64(time.Second)).Round(time.Millisecond))
	}
	if n.self.Follower {
		parts = append(parts, "the follower")
	}
	if !n.withRedis() {
		return strings.Join(append(parts, "without Redis"), ", ")
	}
	return strings.Join(append(parts, fmt.Sprintf("one of %d nodes", n.self.Nodes)), ", ")
}
