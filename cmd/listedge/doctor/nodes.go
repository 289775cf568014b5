package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"listedge/cache"
	"listedge/edge/admin"
	originadmin "listedge/origin/admin"
)

// isNew reports whether the node has just started: others do not count it yet.
func (n nodeState) isNew() bool {
	const settles = 10 * time.Second
	return n.Now.Sub(n.self.Started) < settles
}

func (n *nodeState) withRedis() bool {
	return slices.ContainsFunc(n.Checks, func(c admin.CheckState) bool { return c.Name == "Redis" })
}

func (n *nodeState) untrusted() bool { return n.self.Mode == cache.ModeUntrusted.String() }

// versionText is a node's version with the beginning of its revision.
func versionText(n admin.NodeState) string {
	return n.Version + " (" + n.Revision[:min(len(n.Revision), 10)] + ")"
}

// checkNode reports how one node is.
func (r *report) checkNode(n *nodeState) {
	subject := "node " + n.name
	var failing []string
	for _, c := range n.Checks {
		if c.Why != "" {
			failing = append(failing, strings.ToLower(c.Name))
		}
	}
	const remedy = "mend what the findings on these checks name"
	switch because := strings.Join(failing, ", ") + " failed"; {
	case n.err != nil:
		r.fail(subject, n.err.Error(), "see whether it runs, its log, and whether --node names its admin listener")
	case n.Draining:
		r.warn(subject, "it is draining: not ready, and still answering", "nothing, if it is being replaced")
	case n.untrusted() && len(failing) == 0:
		r.warn(subject, "it has no proof yet that its pages are fresh", "check again")
	case !n.self.Ready && len(failing) == 0:
		r.warn(subject, "it has not checked yet whether it is ready", "check again")
	case !n.self.Ready:
		r.fail(subject, "not ready: "+because, remedy)
	case n.untrusted():
		r.fail(subject, "it serves no page from a cache as fresh: "+because, remedy)
	default:
		r.ok(subject, n.summary())
	}
}

// checkChecks reports what checks of nodes found, in their words: once for all nodes that
// say the same. It leaves out what the doctor has found itself, and what another failure explains.
func (r *report) checkChecks(nodes []nodeState) {
	var order []originadmin.Finding
	on := map[originadmin.Finding][]string{}
	for i := range nodes {
		n := &nodes[i]
		for _, c := range n.Checks {
			f := originadmin.Finding{Subject: strings.ToLower(c.Name), Level: originadmin.Warn, Text: c.Why, Remedy: c.WhatToDo()}
			if c.Serious && (!n.self.Ready || n.untrusted()) {
				f.Level = originadmin.Fail
			}
			if c.Broken != "" {
				f.Text = c.Broken + ": " + c.Why
			}
			if c.Why == "" || c.Follows || slices.ContainsFunc(*r, func(o originadmin.Finding) bool { return o.Subject == f.Subject && o.Level != originadmin.OK }) {
				continue
			}
			if on[f] == nil {
				order = append(order, f)
			}
			on[f] = append(on[f], n.name)
		}
	}
	for _, f := range order {
		r.judge(f.Subject, true, f.Level, "", f.Text+", on "+strings.Join(on[f], ", "), f.Remedy)
	}
}

func (n *nodeState) summary() string {
	parts := []string{versionText(n.self), "ready", "pages expire by age"}
	if proof := n.self.Last.Proof; proof != nil {
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
