package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"listedge/cache"
	"listedge/cmd/listedge/node"
	"listedge/origin/admin"
)

// surroundings are the findings about the servers that the nodes use.
type surroundings struct {
	region   string
	redis    *redisState // nil = it was not checked
	database []admin.Finding
}

// hasFollower reports whether a node holds the slot of the region in the database.
func (s surroundings) hasFollower() bool {
	return slices.ContainsFunc(s.database, func(f admin.Finding) bool { return f.Subject == "slot" && strings.HasPrefix(f.Text, "followed") })
}

// sameSettings are the settings that must be the same on all nodes, because any node may
// answer a request. The region is checked separately.
var sameSettings = []string{"database-url", "replication-url", "redis-url", "freshness-bound", "cache-ttl", "max-stale", "key-grace", "limiter-failure-mode",
	"trusted-proxies"}

// checkFleet reports whether the nodes that answer form one fleet.
func (r *report) checkFleet(all []nodeState, around surroundings) {
	nodes := slices.DeleteFunc(slices.Clone(all), func(n nodeState) bool { return n.err != nil })
	if len(nodes) == 0 {
		return // each has a finding
	}
	if text, same := byNode(nodes, (*nodeState).version); same {
		r.ok("fleet version", text)
	} else {
		r.warn("fleet version", text, "finish the upgrade")
	}
	r.checkSettings(nodes, around)
	r.checkFollower(nodes, around)
	r.checkLog(nodes, around)
	r.checkSize(nodes, around)
}

// byNode says which nodes have which value, and whether it is the same on all.
func byNode(nodes []nodeState, value func(*nodeState) string) (text string, same bool) {
	on := nodesByValue{}
	for i := range nodes {
		on.add(value(&nodes[i]), nodes[i].name)
	}
	if len(on) == 1 {
		return value(&nodes[0]) + " on all", true
	}
	return strings.Join(on.parts(), "; "), false
}

// nodesByValue has the names of the nodes with a value.
type nodesByValue map[string][]string

func (on nodesByValue) add(value, node string) { on[value] = append(on[value], node) }

// parts are "x on a, b" for each value, the most frequent first.
func (on nodesByValue) parts() (all []string) {
	for _, value := range slices.SortedFunc(maps.Keys(on), func(a, b string) int { return cmp.Or(cmp.Compare(len(on[b]), len(on[a])), cmp.Compare(a, b)) }) {
		all = append(all, value+" on "+strings.Join(on[value], ", "))
	}
	return all
}

func (r *report) checkSettings(nodes []nodeState, around surroundings) {
	setting := func(name string) func(*nodeState) string {
		return func(n *nodeState) string {
			if value, set := n.settings[name]; set {
				return node.SettingText(value)
			}
			return "none"
		}
	}
	text, same := byNode(nodes, setting("region"))
	switch here := cmp.Or(around.region, "none"); {
	case !same:
		r.fail("fleet region", text, "check one region at a time; nodes that share a Redis must have the same region")
	case setting("region")(&nodes[0]) != here:
		r.warn("fleet region", text+", and the slot above is that of "+here, "give the doctor the nodes' --region")
	default:
		r.ok("fleet region", text)
	}
	if text, same := byNode(nodes, setting("database")); !same { // whatever their URLs
		r.fail("fleet database", text, "give all nodes the same --database-url, or give the nodes of each database a Redis of their own; check again if a node has "+
			"just started")
	}
	differ := false
	for _, name := range sameSettings {
		if text, same := byNode(nodes, setting(name)); !same {
			differ = true
			r.warn("fleet "+name, text, "give all nodes the same --"+name)
		}
	}
	if !differ {
		r.ok("fleet settings", "the same on all, where they must be")
	}
}

// checkFollower reports whether exactly one node follows changes for all.
func (r *report) checkFollower(nodes []nodeState, around surroundings) {
	const subject = "fleet follower"
	var following []string
	candidates, modes := 0, map[string]int{} // of nodes whose settings let them follow
	for i := range nodes {
		if n := &nodes[i]; n.bound() > 0 {
			candidates++
			modes[n.readiness.Mode]++
			if n.follows() {
				following = append(following, n.name)
			}
		}
	}
	switch {
	case candidates == 0:
		r.ok(subject, "none, by their settings (--freshness-bound 0)")
	case len(following) > 1:
		r.fail(subject, strings.Join(following, " and ")+" follow, each for a fleet of its own",
			"give all nodes the same --database-url, --region and --redis-url; check regions one at a time")
	case len(following) == 1 && !around.hasFollower():
		r.fail(subject, following[0]+" follows, but not in the database and the region that are checked here",
			"give the doctor the nodes' --database-url and --region")
	case len(following) == 1:
		r.ok(subject, following[0]+" follows for all")
	case modes[cache.ModeFollowed.String()] == candidates:
		r.warn(subject, "none of these, and yet they receive changes: another node follows", "name all nodes with --node")
	case modes[cache.ModeTTL.String()] == candidates:
		r.warn(subject, "none can follow: pages expire after --cache-ttl", "fix the findings on Postgres")
	default:
		r.fail(subject, "no node follows changes", "see ListedgeNoFollower in the runbook, unless one has just ended: another takes its place within seconds")
	}
}

// checkLog reports whether the nodes read the same log of changes.
func (r *report) checkLog(nodes []nodeState, around surroundings) {
	const subject = "fleet log of changes"
	epoch := func(n *nodeState) string { return n.metrics.Label("listedge_freshness_epoch_info", "epoch") }
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n nodeState) bool { return epoch(&n) == "" })
	if len(nodes) == 0 {
		r.ok(subject, "none is read")
		return
	}
	text, same := byNode(nodes, epoch)
	switch {
	case !same:
		r.fail(subject, "they do not read one log: epoch "+text, "check again if Postgres has just restarted; else give all nodes the same --redis-url")
	case around.redis != nil && around.redis.isKnown && nodes[0].withRedis() && around.redis.epoch != epoch(&nodes[0]):
		r.fail(subject, fmt.Sprintf("epoch %s; the Redis that is checked here has %s", text, cmp.Or(around.redis.epoch, "none")),
			"give the doctor the nodes' --redis-url; check again if Postgres has just restarted")
	default:
		r.ok(subject, "epoch "+text)
	}
}

// checkSize reports whether the nodes that answered are those that share the limits.
func (r *report) checkSize(nodes []nodeState, around surroundings) {
	const subject = "fleet size"
	var alone []string
	for _, n := range nodes {
		if !n.withRedis() {
			alone = append(alone, n.name)
		}
	}
	text, same := byNode(nodes, func(n *nodeState) string { return fmt.Sprint(n.fleetSize()) })
	counted, by, answered := nodes[0].fleetSize(), "they count", int64(len(nodes))
	if around.redis != nil {
		counted, by = around.redis.nodes, "Redis counts"
	}
	switch {
	case len(alone) > 0 && len(nodes) == 1:
		r.ok(subject, "one node, without Redis")
	case len(alone) > 0:
		r.fail(subject, strings.Join(alone, ", ")+" without Redis: each admits a whole limit of its own", "give all nodes the same --redis-url")
	case !same:
		r.warn(subject, "counted differently: "+text, "check again; if it stays, give all nodes the same --redis-url")
	case counted < answered:
		r.fail(subject, fmt.Sprintf("%d answered, and %s %d", answered, by, counted), "give the doctor the nodes' --redis-url, and all nodes the same")
	case counted > answered:
		r.warn(subject, fmt.Sprintf("%d answered, and %s %d", answered, by, counted), "name all nodes with --node; a node that has ended is counted for some seconds")
	default:
		r.ok(subject, fmt.Sprintf("%d, which share the limits", counted))
	}
}
