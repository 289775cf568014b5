package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"listedge/cache"
	"listedge/edge/admin"
	"listedge/internal/remedy"
	"listedge/origin/postgres"
)

func (n *nodeState) untrusted() bool { return n.Self.Mode == cache.ModeUntrusted.String() }

// check reports whether the node answers, is ready, and serves fresh pages.
func (n *nodeState) check() Finding {
	subject := "node " + n.name
	level, todo := Fail, "mend what the findings on its checks name, and check again"
	if !slices.ContainsFunc(n.Checks, func(c admin.CheckState) bool { return c.Why != "" }) {
		level, todo = Warn, "check again: no check says why, as just after a start"
	}
	fresh := "pages expire by age"
	if proof := n.Self.Proof; proof != nil {
		fresh = fmt.Sprintf("proof of freshness %.0f ms old", 1000**proof)
	}
	switch {
	case n.err != nil:
		why, _ := remedy.Explain(n.err)
		return Finding{subject, Fail, why, "see whether it runs, its log, and whether --node names its admin listener"}
	case n.Draining:
		return Finding{subject, Warn, "it is draining: not ready, and still answering", "nothing, if it is being replaced"}
	case !n.Self.Ready:
		return Finding{subject, level, "not ready", todo}
	case n.untrusted():
		return Finding{subject, level, "it serves no page from a cache as fresh", todo}
	}
	return Finding{subject, OK, "ready, " + fresh, ""}
}

// checksOf reports what the checks of nodes and of the doctor found, in their words: once for all
// that say the same. It leaves out what another failure explains, and of the nodes what the doctor,
// which comes first, has found itself.
func checksOf(nodes []nodeState) (found []Finding) {
	on, bad := map[Finding][]string{}, map[string]bool{}
	for i, n := range nodes {
		for _, c := range n.Checks {
			f := Finding{strings.ToLower(c.Name), Warn, strings.TrimPrefix(c.Broken+": "+c.Why, ": "), c.WhatToDo()}
			if c.Why == "" {
				f = Finding{f.Subject, OK, c.Fine, ""}
			} else if lost := !n.Self.Ready && (c.Effect > admin.Reported || c.Name == "Redis"); (lost || c.Light && n.untrusted()) && !errors.Is(c.Err, postgres.ErrTimeout) {
				f.Level = Fail
			}
			if f.Text == "" || c.Follows || i > 0 && bad[f.Subject] {
				continue
			}
			bad[f.Subject] = f.Level != OK && i == 0
			if on[f] == nil {
				found = append(found, f)
			}
			on[f] = append(on[f], n.name)
		}
	}
	for i, f := range found {
		if f.Level != OK {
			found[i].Text += ", on " + strings.Join(on[f], ", on ")
		}
	}
	return found
}
