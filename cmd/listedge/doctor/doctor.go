// Package doctor checks the servers and the nodes of a fleet at once, and reports findings:
// what is fine, risky or broken, and what to do.
//
//	node.Examine ── a node's own checks of its servers, run here ─┐
//	readNodes ── what the nodes' checks have found ───────────────┼─► findings, in this order
//	compareNodes ── all nodes together ───────────────────────────┘
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"listedge/cache"
	"listedge/cmd/listedge/node"
	"listedge/edge/admin"
	"listedge/internal/remedy"
	"listedge/origin/postgres"
)

// timeout bounds all checks together: a server that hangs has a finding that says so.
const timeout = 5 * time.Second

// Level says how much a finding matters.
type Level string

// The values of Level.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, with the risk or loss that the text names
	Fail Level = "fail" // does not work
)

// Finding is the result of one check.
type Finding struct {
	Subject string `json:"subject"`
	Level   Level  `json:"level"`
	Text    string `json:"text"`
	Remedy  string `json:"remedy,omitempty"` // what to do about it
}

// Examine checks concurrently the servers of a node with these options, and the nodes that the
// URLs mean. An error is a setting that cannot work.
func Examine(ctx context.Context, o node.Options, urls []AdminURL) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var reading sync.WaitGroup
	var nodes []nodeState
	reading.Go(func() { nodes = readNodes(ctx, urls) })
	servers, err := node.Examine(ctx, o, len(urls))
	reading.Wait()
	if err != nil {
		return nil, err
	}
	doctor := nodeState{name: "the doctor", State: servers}
	found := checksOf(append([]nodeState{doctor}, nodes...))
	for i := range nodes {
		found = append(found, nodes[i].check())
	}
	nodes = slices.DeleteFunc(nodes, func(n nodeState) bool { return n.err != nil }) // each has a finding
	here := view{doctor.name, map[string]string{"region": cmp.Or(o.Region, "none"), "size": fmt.Sprint(len(nodes)),
		"database": fmt.Sprint(servers.Settings["database"]), "lists": node.SettingText(servers.Settings["lists"]), "log of changes": servers.Self.Epoch}}
	return append(found, compareNodes(nodes, here)...), nil
}

// nodeState is what a node's admin listener says of the node.
type nodeState struct {
	name string
	err  error // why the node could not be read
	admin.State
}

// readNodes reads the state of all nodes that the URLs mean, each once, sorted by address.
func readNodes(ctx context.Context, urls []AdminURL) (all []nodeState) {
	var calls sync.WaitGroup
	var mu sync.Mutex // guards all
	for _, u := range urls {
		calls.Go(func() {
			for _, one := range u.nodes(ctx) {
				calls.Go(func() {
					n := nodeState{name: one.Host}
					n.err = one.Get(ctx, "state", &n.State)
					mu.Lock()
					defer mu.Unlock()
					all = append(all, n)
				})
			}
		})
	}
	calls.Wait()
	slices.SortFunc(all, func(a, b nodeState) int { return cmp.Compare(a.name, b.name) })
	return slices.CompactFunc(all, func(a, b nodeState) bool { return a.name == b.name })
}

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
// which comes first, has found itself. Where only the doctor looked, it does not say who.
func checksOf(nodes []nodeState) (found []Finding) {
	on, bad := map[Finding][]string{}, map[string]bool{}
	for i, n := range nodes {
		for _, c := range n.Checks {
			f := Finding{strings.ToLower(c.Name), Warn, strings.TrimPrefix(c.Broken+": "+c.Why, ": "), c.WhatToDo()}
			lost := !n.Self.Ready && (c.Effect > admin.Reported || c.Name == "Redis") || c.Light && n.untrusted()
			if c.Why == "" {
				f = Finding{f.Subject, OK, c.Fine, ""}
			} else if lost && !errors.Is(c.Err, postgres.ErrTimeout) {
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
		if f.Level != OK && len(nodes) > 1 {
			found[i].Text += ", on " + strings.Join(on[f], ", on ")
		}
	}
	return found
}

// view is what a node or the doctor itself says about the fleet.
type view struct {
	name string
	says map[string]string // by subject; it knows nothing of one that is missing
}

// agreed are the subjects of which all views must say the same, and what to do if they do not.
var agreed = []struct {
	subject string
	level   Level
	remedy  string
}{
	{"version", Warn, "finish the upgrade: docs/UPGRADING.md"},
	{"region", Fail, "check one region at a time, with its --region; nodes that share a Redis must have the same region"},
	{"database", Fail, "give all nodes and the doctor the same --database-url, or give the nodes of each database a Redis of their own"},
	{"lists", Warn, "give all nodes and the doctor the same --lists; with the same, tables differ, or a node started before one was altered"},
	{"log of changes", Fail, "give all nodes and the doctor the same --redis-url; check again if Postgres has just restarted"},
	{"follower", Fail, "give all nodes the same --database-url, --region and --redis-url; check regions one at a time"},
	{"limits", Fail, "give all nodes the same --redis-url: one without it admits a whole limit of its own"},
	{"size", Warn, "name all nodes with --node, and give all nodes and the doctor the same --redis-url; " +
		"a node that has started or ended is miscounted for some seconds"},
}

// sameSettings are the settings that must be the same on all nodes, because any node may
// answer a request.
var sameSettings = []string{"database-url", "replication-url", "redis-url", "freshness-bound", "cache-ttl", "max-stale", "key-grace", "limiter-failure-mode",
	"trusted-proxies", "slot"}

// settles is how long after the start of a node the others may not count it yet.
const settles = 10 * time.Second

// compareNodes reports whether the nodes form one fleet, also for the doctor. Nodes that
// count each other differently use several Redis, each with whole limits of its own.
func compareNodes(nodes []nodeState, views ...view) (found []Finding) {
	if len(nodes) == 0 {
		return nil
	}
	for i := range nodes {
		views = append(views, nodes[i].view())
	}
	_, alike := compare(views[len(views)-len(nodes):], "size")
	settled := !slices.ContainsFunc(nodes, func(n nodeState) bool { return n.Now.Sub(n.Self.Started) < settles })
	for _, a := range agreed {
		text, same := compare(views, a.subject)
		switch {
		case text == "":
			continue
		case same:
			a.level, a.remedy = OK, ""
		case a.subject == "size" && settled && !alike:
			a.level = Fail
		}
		found = append(found, Finding{"fleet " + a.subject, a.level, text, a.remedy})
	}
	for _, name := range sameSettings {
		if text, same := compare(views, name); !same {
			found = append(found, Finding{"fleet " + name, Warn, text, "give all nodes the same --" + name})
		}
	}
	return found
}

// compare says which views say what of a subject, the most frequent first, and whether all
// say the same. The text is empty if no view knows it.
func compare(views []view, subject string) (text string, same bool) {
	on := map[string][]string{}
	for _, v := range views {
		if value := v.says[subject]; value != "" {
			on[value] = append(on[value], v.name)
		}
	}
	var parts []string
	for _, value := range slices.SortedFunc(maps.Keys(on), func(a, b string) int { return cmp.Or(cmp.Compare(len(on[b]), len(on[a])), cmp.Compare(a, b)) }) {
		if len(on) == 1 {
			return value + " on all", true
		}
		parts = append(parts, value+" on "+strings.Join(on[value], ", "))
	}
	return strings.Join(parts, "; "), len(on) == 0
}

// view is what the node says of the fleet.
func (n *nodeState) view() view {
	database, _ := n.Settings["database"].(string) // empty = not known yet
	version := n.Self.Version + " (" + n.Self.Revision[:min(len(n.Self.Revision), 10)] + ")"
	says := map[string]string{"version": version, "database": database, "log of changes": n.Self.Epoch}
	for _, name := range append(sameSettings, "region", "lists") {
		says[name] = "none"
		if value, set := n.Settings[name]; set {
			says[name] = cmp.Or(node.SettingText(value), "none")
		}
	}
	says["limits"], says["size"] = "in Redis", strings.TrimPrefix(fmt.Sprint(n.Self.Nodes), "0") // 0 = not known yet
	if says["redis-url"] == "none" {
		says["limits"], says["size"] = "not in Redis", "1"
	}
	if n.Self.Follower {
		says["follower"] = n.name
	}
	return view{n.name, says}
}
