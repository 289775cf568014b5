package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"listedge/cmd/listedge/node"
)

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
	{"log of changes", Fail, "give all nodes and the doctor the same --redis-url; check again if Postgres has just restarted"},
	{"follower", Fail, "give all nodes the same --database-url, --region and --redis-url; check regions one at a time"},
	{"limits", Fail, "give all nodes the same --redis-url: one without it admits a whole limit of its own"},
	{"size", Warn, "name all nodes with --node, and give all nodes and the doctor the same --redis-url; " +
		"a node that has started or ended is miscounted for some seconds"},
}

// sameSettings are the settings that must be the same on all nodes, because any node may
// answer a request.
var sameSettings = []string{"database-url", "replication-url", "redis-url", "freshness-bound", "cache-ttl", "max-stale", "key-grace", "limiter-failure-mode",
	"trusted-proxies"}

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
	says := map[string]string{"version": n.Self.Version + " (" + n.Self.Revision[:min(len(n.Self.Revision), 10)] + ")", "database": database, "log of changes": n.Self.Epoch}
	for _, name := range append(sameSettings, "region") {
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
