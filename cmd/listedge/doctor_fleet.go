package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"listedge/cache"
	"listedge/origin/admin"
)

// surroundings are what the doctor sees beside the nodes.
type surroundings struct {
	region   string
	redis    *redisSeen // nil = it was not looked at
	database []admin.Finding
}

// followed says whether somebody holds the slot of the region in the database.
func (s surroundings) followed() bool {
	return slices.ContainsFunc(s.database, func(f admin.Finding) bool { return f.Subject == "slot" && f.Level == admin.OK })
}

// sameSettings must be the same on all nodes: which one answers is chance. The
// region is judged for itself.
var sameSettings = []string{"database-url", "replication-url", "redis-url", "freshness-bound", "cache-ttl", "max-stale", "key-grace", "limiter-failure-mode", "trusted-proxies"}

// judgeFleet is what the nodes that answer are together.
func judgeFleet(all []nodeSeen, around surroundings) (findings []admin.Finding) {
	nodes := slices.DeleteFunc(slices.Clone(all), func(n nodeSeen) bool { return n.err != nil })
	if len(nodes) == 0 {
		return nil // whatever there is has been said
	}
	findings = append(findings, agree(nodes, "version", admin.Warn, (*nodeSeen).version, "finish the upgrade"))
	findings = append(findings, judgeSettings(nodes, around)...)
	return append(findings, judgeFollowing(nodes, around), judgeLog(nodes, around), judgeCount(nodes, around))
}

// agree finds whether something is the same on all nodes.
func agree(nodes []nodeSeen, what string, level admin.Level, of func(*nodeSeen) string, do string) admin.Finding {
	text, same := byNode(nodes, of)
	if same {
		return admin.Finding{Subject: "fleet " + what, Level: admin.OK, Text: text}
	}
	return admin.Finding{Subject: "fleet " + what, Level: level, Text: text, Do: do}
}

// byNode says what the nodes say, as "x on a, b; y on c", what most say first,
// and whether all say the same.
func byNode(nodes []nodeSeen, of func(*nodeSeen) string) (text string, same bool) {
	type group struct {
		said string
		by   []string
	}
	var groups []group
	for i := range nodes {
		said := of(&nodes[i])
		at := slices.IndexFunc(groups, func(g group) bool { return g.said == said })
		if at < 0 {
			at = len(groups)
			groups = append(groups, group{said: said})
		}
		groups[at].by = append(groups[at].by, nodes[i].name)
	}
	if len(groups) == 1 {
		return groups[0].said + " on all", true
	}
	slices.SortStableFunc(groups, func(a, b group) int { return cmp.Compare(len(b.by), len(a.by)) })
	var parts []string
	for _, g := range groups {
		parts = append(parts, g.said+" on "+strings.Join(g.by, ", "))
	}
	return strings.Join(parts, "; "), false
}

func judgeSettings(nodes []nodeSeen, around surroundings) (findings []admin.Finding) {
	silent := len(nodes)
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n nodeSeen) bool { return n.settings == nil })
	if silent -= len(nodes); silent > 0 {
		findings = append(findings, admin.Finding{Subject: "fleet settings", Level: admin.Warn,
			Text: fmt.Sprintf("%d of the nodes do not tell theirs", silent), Do: "use a program of this version there, to have them compared"})
	}
	if len(nodes) == 0 {
		return findings
	}
	setting := func(name string) func(*nodeSeen) string {
		return func(n *nodeSeen) string {
			if value, set := n.settings[name]; set {
				return settingText(value)
			}
			return "none"
		}
	}
	text, same := byNode(nodes, setting("region"))
	switch here := cmp.Or(around.region, "none"); {
	case !same:
		findings = append(findings, admin.Finding{Subject: "fleet region", Level: admin.Fail, Text: text,
			Do: "ask one region at a time; nodes that share a Redis must be of one"})
	case setting("region")(&nodes[0]) != here:
		findings = append(findings, admin.Finding{Subject: "fleet region", Level: admin.Warn, Text: text + ", and the slot above is that of " + here,
			Do: "give the doctor the nodes' --region"})
	default:
		findings = append(findings, admin.Finding{Subject: "fleet region", Level: admin.OK, Text: text})
	}
	saying := slices.DeleteFunc(slices.Clone(nodes), func(n nodeSeen) bool { return n.settings["database"] == nil }) // others are of the version before
	if text, same := byNode(saying, setting("database")); len(saying) > 0 && !same {                                 // whatever URL leads there
		findings = append(findings, admin.Finding{Subject: "fleet database", Level: admin.Fail, Text: text,
			Do: "give all nodes the same --database-url, or each database's nodes a Redis of their own; ask again, if a node has just started"})
	}
	differ := false
	for _, name := range sameSettings {
		if text, same := byNode(nodes, setting(name)); !same {
			differ = true
			findings = append(findings, admin.Finding{Subject: "fleet " + name, Level: admin.Warn, Text: text, Do: "give all nodes the same --" + name})
		}
	}
	if !differ && silent == 0 {
		findings = append(findings, admin.Finding{Subject: "fleet settings", Level: admin.OK, Text: "the same on all, where they must be"})
	}
	return findings
}

// judgeFollowing finds whether one of the nodes, and only one, follows changes
// for all that are to know of them.
func judgeFollowing(nodes []nodeSeen, around surroundings) admin.Finding {
	say := func(level admin.Level, text, do string) admin.Finding {
		return admin.Finding{Subject: "fleet follower", Level: level, Text: text, Do: do}
	}
	var following, wanting []string
	modes := map[string]int{}
	for i := range nodes {
		if n := &nodes[i]; n.bound() > 0 {
			wanting = append(wanting, n.name)
			modes[n.readiness.Mode]++
			if n.follows() {
				following = append(following, n.name)
			}
		}
	}
	switch {
	case len(wanting) == 0:
		return say(admin.OK, "none, as all nodes are told (--freshness-bound 0)", "")
	case len(following) > 1:
		return say(admin.Fail, strings.Join(following, " and ")+" follow, each for a fleet of its own", "give all nodes the same --database-url, --region and --redis-url; ask regions one at a time")
	case len(following) == 1 && !around.followed():
		return say(admin.Fail, following[0]+" follows, but not in the database and the region that are looked at here", "give the doctor the nodes' --database-url and --region")
	case len(following) == 1:
		return say(admin.OK, following[0]+" follows for all", "")
	case modes[cache.ModeFollowed.String()] == len(wanting):
		return say(admin.Warn, "none of these, and yet changes reach them: another node follows", "name all nodes with --node")
	case modes[cache.ModeTTL.String()] == len(wanting):
		return say(admin.Warn, "none can follow: pages live --cache-ttl", "mend what is said of Postgres")
	}
	return say(admin.Fail, "no node follows changes", "see ListedgeNoFollower in the runbook, unless one has just ended: another takes its place within seconds")
}

// judgeLog finds whether the nodes that know of changes read them from one log.
func judgeLog(nodes []nodeSeen, around surroundings) admin.Finding {
	epoch := func(n *nodeSeen) string { return n.metrics.Label("listedge_freshness_epoch_info", "epoch") }
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n nodeSeen) bool { return epoch(&n) == "" })
	say := func(level admin.Level, text, do string) admin.Finding {
		return admin.Finding{Subject: "fleet log of changes", Level: level, Text: text, Do: do}
	}
	if len(nodes) == 0 {
		return say(admin.OK, "none is read", "")
	}
	text, same := byNode(nodes, epoch)
	switch {
	case !same:
		return say(admin.Fail, "they do not read one log: epoch "+text, "ask again, if Postgres has just restarted; else give all nodes the same --redis-url")
	case around.redis != nil && around.redis.isKnown && nodes[0].withRedis() && around.redis.epoch != epoch(&nodes[0]):
		return say(admin.Fail, fmt.Sprintf("epoch %s; the Redis that is looked at here has %s", text, cmp.Or(around.redis.epoch, "none")),
			"give the doctor the nodes' --redis-url; ask again, if Postgres has just restarted")
	}
	return say(admin.OK, "epoch "+text, "")
}

// judgeCount finds whether the nodes that were asked are those that share the
// limits.
func judgeCount(nodes []nodeSeen, around surroundings) admin.Finding {
	say := func(level admin.Level, text, do string) admin.Finding {
		return admin.Finding{Subject: "fleet size", Level: level, Text: text, Do: do}
	}
	var alone []string
	for _, n := range nodes {
		if !n.withRedis() {
			alone = append(alone, n.name)
		}
	}
	switch {
	case len(alone) > 0 && len(nodes) == 1:
		return say(admin.OK, "one node, without Redis", "")
	case len(alone) > 0:
		return say(admin.Fail, strings.Join(alone, ", ")+" without Redis: each admits a whole limit of its own", "give all nodes the same --redis-url")
	}
	const moment = "a node that has ended is counted for some seconds"
	text, same := byNode(nodes, func(n *nodeSeen) string { return fmt.Sprint(n.nodes()) })
	if !same {
		return say(admin.Warn, "counted differently: "+text, "ask again; if it stays, give all nodes the same --redis-url")
	}
	counted, by := nodes[0].nodes(), "they count"
	if around.redis != nil {
		counted, by = around.redis.nodes, "Redis counts"
	}
	switch asked := int64(len(nodes)); {
	case counted < asked:
		return say(admin.Fail, fmt.Sprintf("%d answered, and %s %d", asked, by, counted), "give the doctor the nodes' --redis-url, and all nodes the same")
	case counted > asked:
		return say(admin.Warn, fmt.Sprintf("%d answered, and %s %d", asked, by, counted), "name all nodes with --node; "+moment)
	}
	return say(admin.OK, fmt.Sprintf("%d, which share the limits", counted), "")
}
