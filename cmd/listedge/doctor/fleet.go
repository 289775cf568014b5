package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"listedge/cache"
	"listedge/cmd/listedge/node"
	"listedge/origin/admin"
)

// view is what a node, Redis or the doctor itself says about the fleet.
type view struct {
	name string
	says map[string]string // by subject; it knows nothing of one that is missing
}

// agreed are the subjects of which all views must say the same, and what to do if they do not.
var agreed = []struct{ subject, remedy string }{
	{"region", "check one region at a time, with its --region; nodes that share a Redis must have the same region"},
	{"database", "give all nodes and the doctor the same --database-url, or give the nodes of each database a Redis of their own"},
	{"log of changes", "give all nodes and the doctor the same --redis-url; check again if Postgres has just restarted"},
}

// sameSettings are the settings that must be the same on all nodes, because any node may
// answer a request.
var sameSettings = []string{"database-url", "replication-url", "redis-url", "freshness-bound", "cache-ttl", "max-stale", "key-grace", "limiter-failure-mode",
	"trusted-proxies"}

// settles is how long after the start of a node the others may not count it yet.
const settles = 10 * time.Second

// checkFleet reports whether the nodes that answer form one fleet, also for Redis and the doctor.
func (r *report) checkFleet(nodes []nodeState, others ...view) {
	nodes = slices.DeleteFunc(nodes, func(n nodeState) bool { return n.err != nil }) // each has a finding
	if len(nodes) == 0 {
		return
	}
	var views []view
	for i := range nodes {
		views = append(views, view{nodes[i].name, nodes[i].says()})
	}
	all := slices.Concat(views, others)
	for _, a := range agreed {
		r.compare(all, a.subject, admin.Fail, a.remedy)
	}
	for _, name := range sameSettings {
		if text, same := compare(views, name); !same {
			r.add("fleet "+name, admin.Warn, text, "give all nodes the same --"+name)
		}
	}
	r.checkFollower(nodes)
	level, isNew := admin.Warn, func(n nodeState) bool { return n.Now.Sub(n.self.Started) < settles }
	if _, same := compare(views, "size"); !same && !slices.ContainsFunc(nodes, isNew) {
		level = admin.Fail // one without the others' Redis admits a whole limit of its own
	}
	r.compare(append(all, view{"the doctor", map[string]string{"size": fmt.Sprint(len(nodes))}}), "size", level,
		"name all nodes with --node, and give all nodes and the doctor the same --redis-url; a node that has started or ended is miscounted for some seconds")
}

// compare reports whether all views say the same of a subject, if one of them knows it.
func (r *report) compare(views []view, subject string, level admin.Level, remedy string) {
	switch text, same := compare(views, subject); {
	case text == "":
	case same:
		r.add("fleet "+subject, admin.OK, text, "")
	default:
		r.add("fleet "+subject, level, text, remedy)
	}
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

// says returns what the node says of the fleet, by subject, as in view.
func (n *nodeState) says() map[string]string {
	size := "1"
	if n.withRedis() {
		size = strings.TrimPrefix(fmt.Sprint(n.self.Nodes), "0") // 0 = not known yet
	}
	all := map[string]string{"size": size, "region": cmp.Or(n.setting("region"), "none"), "database": n.setting("database")}
	if n.self.Epoch != "" {
		all["log of changes"] = "epoch " + n.self.Epoch
	}
	for _, name := range sameSettings {
		all[name] = cmp.Or(n.setting(name), "none")
	}
	return all
}

func (n *nodeState) setting(name string) string {
	if value, set := n.settings[name]; set {
		return node.SettingText(value)
	}
	return ""
}

// checkFollower reports whether exactly one node follows changes for all. If none does, checks
// of the nodes say why.
func (r *report) checkFollower(nodes []nodeState) {
	const subject = "fleet follower"
	var following []string
	modes := map[string]int{}
	for _, n := range nodes {
		modes[n.self.Mode]++
		if n.self.Follower {
			following = append(following, n.name)
		}
	}
	switch {
	case len(following) > 1:
		r.add(subject, admin.Fail, strings.Join(following, " and ")+" follow, each for a fleet of its own",
			"give all nodes the same --database-url, --region and --redis-url; check regions one at a time")
	case len(following) == 1:
		r.add(subject, admin.OK, following[0]+" follows for all", "")
	case modes[cache.ModeFollowed.String()] > 0:
		r.add(subject, admin.Warn, "none of these, and yet they receive changes: another node follows", "name all nodes with --node")
	case modes[cache.ModeUntrusted.String()] == 0:
		r.add(subject, admin.OK, "none: pages expire by age", "")
	}
}
