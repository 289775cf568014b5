package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"listedge/cache"
	edgeadmin "listedge/edge/admin"
	"listedge/origin/admin"
	"listedge/origin/postgres"
)

func (n *nodeState) untrusted() bool { return n.Self.Mode == cache.ModeUntrusted.String() }

// check reports whether the node answers, is ready, and serves fresh pages.
func (n *nodeState) check() admin.Finding {
	subject := "node " + n.name
	level, todo := admin.Fail, "mend what the findings on its checks name, and check again"
	if !slices.ContainsFunc(n.Checks, func(c edgeadmin.CheckState) bool { return c.Why != "" }) {
		level, todo = admin.Warn, "check again: no check says why, as just after a start"
	}
	fresh := "pages expire by age"
	if proof := n.Self.Proof; proof != nil {
		fresh = fmt.Sprintf("proof of freshness %.0f ms old", 1000**proof)
	}
	switch {
	case n.err != nil:
		return admin.FindingOf(subject, admin.Fail, "", n.err, "see whether it runs, its log, and whether --node names its admin listener")
	case n.Draining:
		return finding(subject, admin.Warn, "it is draining: not ready, and still answering", "nothing, if it is being replaced")
	case !n.Self.Ready:
		return finding(subject, level, "not ready", todo)
	case n.untrusted():
		return finding(subject, level, "it serves no page from a cache as fresh", todo)
	}
	return finding(subject, admin.OK, "ready, "+fresh, "")
}

// checksOf reports what the checks of nodes, or of the doctor, found, in their words: once for all
// that say the same. It leaves out what is known, and what another failure explains.
func checksOf(nodes []nodeState, known []admin.Finding) (found []admin.Finding) {
	on := map[admin.Finding][]string{}
	for _, n := range nodes {
		for _, c := range n.Checks {
			f := finding(strings.ToLower(c.Name), admin.Warn, c.Broken+": "+c.Why, c.WhatToDo())
			if (c.Light || c.Effect > edgeadmin.Reported) && (!n.Self.Ready || n.untrusted()) && !errors.Is(c.Err, postgres.ErrTimeout) {
				f.Level = admin.Fail
			}
			if c.Why == "" {
				f = finding(f.Subject, admin.OK, c.Fine, "")
			}
			if f.Text == "" || c.Follows || slices.ContainsFunc(known, func(o admin.Finding) bool { return o.Subject == f.Subject && o.Level != admin.OK }) {
				continue
			}
			if on[f] == nil {
				found = append(found, f)
			}
			on[f] = append(on[f], n.name)
		}
	}
	for i, f := range found {
		if f.Level != admin.OK {
			found[i].Text += ", on " + strings.Join(on[f], ", on ")
		}
	}
	return found
}
