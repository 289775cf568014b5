package deploy_test

import (
	"fmt"
	"strings"
)

// The dashboard, in the order in which somebody looks during an incident: what
// do clients get, what is firing, and then each part that could be the reason.
// A title is a question or a noun; about says what to make of the answer. To
// add a panel, add it here and run `go test -run Dashboard -update`.
//
// Latencies are native histograms if Prometheus stores them, and else the few classic
// buckets: `A or B` is A if there is any of it.
//
// Every selector is limited to {job="$job", instance=~"$instance"}, which
// `~` stands for; `%` is the same without the instance, for what only the
// whole fleet can answer. `[~]` is Grafana's interval of rates.

type query struct {
	expr   string
	legend string // {{label}} is filled in
}

type panel struct {
	title, about string
	kind         string // a Grafana panel: stat, timeseries, state-timeline, heatmap, table
	unit         string // a Grafana unit
	steps        []step // green below the first; none = no colours
	most         float64
	queries      []query
}

// step is where a value begins to be of a colour. With a name it is a state of
// a timeline.
type step struct {
	from        float64
	color, name string
}

type row struct {
	title  string
	panels []panel
}

func warnAt(orange, red float64) []step {
	return []step{{from: orange, color: "orange"}, {from: red, color: "red"}}
}

// lowIsBad is red below red, orange below orange and green from there.
func lowIsBad(red, orange float64) []step {
	return []step{{from: -1e9, color: "red"}, {from: red, color: "orange"}, {from: orange, color: "green"}}
}

const (
	pages   = `route=~"items|contacts"`
	brought = pages + `, outcome=~"memory|redis|origin|stale|bypass|not_modified"`
)

const (
	duration      = "listedge_http_request_duration_seconds"
	queryDuration = "listedge_origin_query_duration_seconds"
	redisDuration = "listedge_redis_call_duration_seconds"
)

// quantile is that of a histogram, by the labels; selector is what follows a name.
func quantile(q, histogram, selector string, by ...string) string {
	native, grouping := fmt.Sprintf("rate(%s%s[~])", histogram, selector), ""
	if len(by) > 0 {
		grouping = fmt.Sprintf(" by (%s)", strings.Join(by, ", "))
	}
	classic := fmt.Sprintf("rate(%s_bucket%s[~])", histogram, selector)
	return fmt.Sprintf("histogram_quantile(%s, sum%s (%s)) or histogram_quantile(%s, sum by (%s) (%s))",
		q, grouping, native, q, strings.Join(append([]string{"le"}, by...), ", "), classic)
}

// heatmap is all of a histogram's buckets.
func heatmap(histogram, selector string) string {
	return fmt.Sprintf("sum (rate(%s%s[~])) or on () sum by (le) (rate(%s_bucket%s[~]))", histogram, selector, histogram, selector)
}

// share is the part of a counter's events that has these labels besides; sum is the aggregation.
func share(sum, counter, labels, besides string) string {
	return fmt.Sprintf("%[1]s(rate(%[2]s{~%[3]s, %[4]s}[~])) / %[1]s(rate(%[2]s{~%[3]s}[~]))", sum, counter, labels, besides)
}

// mean divides the rates of two counters whose names begin alike.
func mean(name, sum, count, by string) string {
	return fmt.Sprintf("sum by (%[4]s) (rate(%[1]s%[2]s{~}[~])) / sum by (%[4]s) (rate(%[1]s%[3]s{~}[~]))", name, sum, count, by)
}

const (
	requests  = "listedge_http_requests_total"
	fromCache = "listedge_cache_requests_total"
	byNode    = "sum by (instance) "
)

// columnUnits are those of the columns of tables, by their names.
var columnUnits = map[string]string{"requests": "reqps", "refused (429)": "percentunit", "failed (5xx)": "percentunit",
	"hits": "percentunit", "p99": "s", "proof age": "s", "connections": "percentunit"}

var dashboard = []row{
	{"What do clients get?", []panel{
		{"Nodes that answer",
			"Nodes that a scrape reaches, and those that call themselves ready. Fewer than were started: ListedgeNodeDown.", "stat", "short", lowIsBad(1, 2), 0,
			[]query{{`sum(up{%})`, "up"}, {`sum(listedge_ready{%})`, "ready"}}},
		{"Requests", "Answers per second, of every kind.", "stat", "reqps", nil, 0,
			[]query{{`sum(rate(listedge_http_requests_total{~}[~]))`, "all"}}},
		{"Failed requests", "Share of the requests for pages answered 500 or 503. The objective is below 0.1 %.", "stat", "percentunit", warnAt(0.001, 0.01), 0,
			[]query{{share("sum", requests, ", "+pages, `status=~"500|503"`), "failed"}}},
		{"Slowest of a hundred pages", "99th percentile of the time until a page is ready to send. The objective is below 100 ms.", "stat", "s", warnAt(0.05, 0.1), 0,
			[]query{{quantile("0.99", duration, `{~, `+brought+`}`), "p99"}}},
		{"Pages from memory or Redis", "Share of look-ups that did not need Postgres.", "stat", "percentunit", lowIsBad(0.5, 0.8), 1,
			[]query{{share("sum", fromCache, "", `tier=~"memory|redis"`), "hits"}}},
		{"Refused by a limit",
			"Share of the requests for pages answered 429: a client is above the rate of its key or workspace.", "stat", "percentunit", warnAt(0.05, 0.25), 0,
			[]query{{share("sum", requests, ", "+pages, `status="429"`), "refused"}}},
		{"Stale pages", "Share of the look-ups served from a cache because Postgres failed, and marked.", "stat", "percentunit", warnAt(0.001, 0.01), 0,
			[]query{{share("sum", fromCache, "", `tier="stale"`), "stale"}}},
		{"Nodes that prove their pages",
			"Nodes whose pages follow the database within --freshness-bound. The others read each page from Postgres (untrusted) or let pages expire (ttl).",
			"stat", "short", lowIsBad(1, 2), 0,
			[]query{{`sum(listedge_freshness_mode{%, mode="followed"})`, "followed"}}},
		{"Do Postgres and Redis answer?",
			"Whether each server answers every node, as they check every second. ListedgePostgresDown and ListedgeRedisDown: no node has an answer.",
			"state-timeline", "short",
			[]step{{0, "red", "down"}, {1, "green", "up"}}, 0,
			[]query{{`min by (check) (listedge_check_up{~, check=~"postgres|redis|replica .*"})`, "{{check}}"}}},
		{"What is firing?", "Alerts of this fleet, now. Each has a section in the runbook, which every node serves under /runbook.", "table", "short", nil, 0,
			[]query{{`max by (alertname, severity, instance) (ALERTS{job="$job", alertname=~"Listedge.*", alertstate="firing"})`, ""}}},
		{"How fast do the budgets burn?",
			"Bad events over the last hour, as a multiple of what the 30-day budget allows. At 14.4 an alert pages; 1 uses the budget up exactly.",
			"timeseries", "short", warnAt(1, 14.4), 0,
			[]query{{`listedge:slo_errors:ratio_rate1h{job="$job"} / on (slo) group_left listedge:slo_budget:ratio`, "{{slo}}"}}},
	}},
	{"Fleet", []panel{
		{"Every node",
			"One line for each: what it runs, what it does, and how fresh it is. One that differs from the others is the one to " +
				"look at: its status page is at / of its admin listener.", "table", "short", nil, 0,
			[]query{{`max by (instance, version) (listedge_build_info{~})`, "running"},
				{`sum by (instance) (rate(listedge_http_requests_total{~}[~]))`, "requests"},
				{share(byNode, requests, "", `status="429"`), "refused (429)"},
				{share(byNode, requests, "", `status=~"500|503"`), "failed (5xx)"},
				{share(byNode, fromCache, "", `tier=~"memory|redis"`), "hits"},
				{quantile("0.99", duration, `{~, `+brought+`}`, "instance"), "p99"},
				{`max by (instance) (listedge_freshness_proof_age_seconds{~})`, "proof age"},
				{`max by (instance) (listedge_freshness_follower{~})`, "follower"},
				{`max by (instance) (listedge_http_connections{~} / listedge_http_connections_limit{~})`, "connections"}}},
		{"Which nodes answer?", "A scrape reaches the node, and it calls itself ready.", "state-timeline", "short",
			[]step{{0, "red", "down"}, {1, "orange", "not ready"}, {2, "green", "ready"}}, 0,
			[]query{{`max by (instance) (up{%}) + on (instance) (max by (instance) (listedge_ready{%}) or max by (instance) (up{%}))`, "{{instance}}"}}},
		{"How many run which version?", "More than one only while nodes are being replaced.", "timeseries", "short", nil, 0,
			[]query{{`count by (version) (listedge_build_info{%})`, "{{version}}"}}},
	}},
	{"Traffic and errors", []panel{
		{"Answers by status", "429: a limit works. Many 401: a client uses an old key. 503: clients retry later.", "timeseries", "reqps", nil, 0,
			[]query{{`sum by (status) (rate(listedge_http_requests_total{~}[~])) > 0`, "{{status}}"}}},
		{"Answers by collection", "Requests per second by route; none is a path that the API does not have.", "timeseries", "reqps", nil, 0,
			[]query{{`sum by (route) (rate(listedge_http_requests_total{~}[~]))`, "{{route}}"}}},
		{"Is the load spread evenly?",
			"Requests per second by node. A node that gets none while it is ready: look at the load balancer.", "timeseries", "reqps", nil, 0,
			[]query{{`sum by (instance) (rate(listedge_http_requests_total{~}[~]))`, "{{instance}}"}}},
		{"Which nodes fail?", "Answers 500 and 503 per second by node. One node: restart it. All: look at what they share.", "timeseries", "reqps", warnAt(0.1, 1), 0,
			[]query{{`sum by (instance, status) (rate(listedge_http_requests_total{~, status=~"500|503"}[~]))`, "{{instance}} {{status}}"}}},
		{"Open connections",
			"Client connections by node, and how many it takes before it refuses more with 503. Behind a load balancer: its pool.", "timeseries", "short", nil, 0,
			[]query{{`listedge_http_connections{~}`, "{{instance}}"}, {`listedge_http_connections_limit{~}`, "{{instance}} limit"}}},
	}},
	{"Latency", []panel{
		{"How are latencies spread?",
			"Pages by the time until they are ready to send. Two bands are hits and misses; a third above them waits for something. " +
				"Fine where Prometheus stores native histograms, in four steps where it does not.", "heatmap", "s", nil, 0,
			[]query{{heatmap(duration, `{~, `+brought+`}`), ""}}},
		{"Where does the time go?",
			"99th percentile by outcome. Slow origin and quick memory: Postgres. All slow: the node's processor.", "timeseries", "s", warnAt(0.05, 0.1), 0,
			[]query{{quantile("0.99", duration, `{~, `+pages+`}`, "outcome"), "{{outcome}}"}}},
		{"Usual time", "Median by outcome.", "timeseries", "s", nil, 0,
			[]query{{quantile("0.5", duration, `{~, `+pages+`}`, "outcome"), "{{outcome}}"}}},
		{"Is one node slow?", "99th percentile by node.", "timeseries", "s", warnAt(0.05, 0.1), 0,
			[]query{{quantile("0.99", duration, `{~, `+brought+`}`, "instance"), "{{instance}}"}}},
	}},
	{"Cache", []panel{
		{"Where do pages come from?", "Look-ups per second by tier. stale pages were served because the database failed.", "timeseries", "reqps", nil, 0,
			[]query{{`sum by (tier) (rate(listedge_cache_requests_total{~}[~]))`, "{{tier}}"}}},
		{"Hit ratio of memory by node",
			"A node that has just started fills up; one that stays low has too little --cache-memory.", "timeseries", "percentunit", nil, 1,
			[]query{{share(byNode, fromCache, "", `tier="memory"`), "{{instance}}"}}},
		{"Fills", "Pages read from Postgres, fills that failed, and requests that shared the look-up of another.", "timeseries", "reqps", nil, 0,
			[]query{{`sum(rate(listedge_cache_fills_total{~}[~]))`, "fills"}, {`sum(rate(listedge_cache_fill_errors_total{~}[~]))`, "failed"},
				{`sum(rate(listedge_cache_collapsed_total{~}[~]))`, "collapsed"}}},
		{"Is the memory full?",
			"Pages' share of --cache-memory. Full and evicting is normal; full with a low hit ratio is too small.", "timeseries", "percentunit", nil, 1,
			[]query{{`listedge_cache_memory_bytes{~} / listedge_cache_memory_budget_bytes{~}`, "{{instance}}"}}},
		{"What is in memory?", "Rows, the lists that they belong to, and the parts of lists without a gap.", "timeseries", "short", nil, 0,
			[]query{{`listedge_replica_rows{~}`, "rows of {{instance}}"}, {`listedge_replica_lists{~}`, "lists of {{instance}}"},
				{`listedge_replica_ranges{~}`, "parts of {{instance}}"}}},
		{"What do changes do?", "Versions of rows applied, pages made of rows in memory, and pages that rows gave to no-cache. None costs a query.",
			"timeseries", "ops", nil, 0,
			[]query{{`sum by (instance) (rate(listedge_replica_applied_rows_total{~}[~]))`, "rows applied by {{instance}}"},
				{`sum(rate(listedge_cache_assembled_pages_total{~}[~]))`, "pages made"},
				{`sum(rate(listedge_cache_proven_pages_total{~}[~]))`, "pages for no-cache"}}},
		{"Why are rows given up?",
			"row: it is not known how a list shows a row. table: a change did not name its rows. budget: memory was full.", "timeseries", "ops", nil, 0,
			[]query{{`sum by (cause) (rate(listedge_replica_dropped_ranges_total{~}[~]))`, "{{cause}}"}}},
		{"Memory of remembered changes", "By node, beside the memory that rows occupy.", "timeseries", "bytes", nil, 0,
			[]query{{`listedge_replica_remembered_bytes{~}`, "{{instance}}"}, {`listedge_replica_bytes{~}`, "rows of {{instance}}"}}},
		{"What do clients that track a list get?", "none: nothing had changed. delta: the rows that had. full: a part of the whole list.", "timeseries", "ops",
			nil, 0,
			[]query{{`sum by (kind) (rate(listedge_tracking_pages_total{~}[~]))`, "{{kind}}"}}},
		{"Why do they get the whole list?", "first: they have nothing. epoch: another log of changes, or another description. joined: they were here before the " +
			"node's log begins. dropped: too many rows have changed since. unnamed: a change did not name its rows.", "timeseries", "ops", nil, 0,
			[]query{{`sum by (cause) (rate(listedge_tracking_pages_total{~, cause!=""}[~]))`, "{{cause}}"}}},
		{"How far back are changed rows remembered?", "A client that asks more seldom gets the whole list. Changes that do not name their rows are not in it.",
			"timeseries", "s", nil, 0,
			[]query{{`listedge_tracking_horizon_seconds{~}`, "{{instance}}"}}},
		{"How much is remembered?", "Keys of changed rows, and the memory that they occupy.", "timeseries", "short", nil, 0,
			[]query{{`listedge_tracking_ids{~}`, "keys of {{instance}}"}, {`listedge_tracking_bytes{~}`, "bytes of {{instance}}"}}},
		{"Evictions", "Pages evicted from memory, or too large to be stored, per second.", "timeseries", "ops", nil, 0,
			[]query{{`sum by (instance) (rate(listedge_cache_evictions_total{~}[~]))`, "{{instance}}"}}},
		{"Does Redis answer for pages?",
			"Calls for pages, those that failed or timed out, corrupt values, and pages not stored because too many were waiting.", "timeseries", "ops", nil, 0,
			[]query{{`sum(rate(listedge_cache_redis_calls_total{~}[~]))`, "calls"}, {`sum(rate(listedge_cache_redis_failures_total{~}[~]))`, "failed"},
				{`sum(rate(listedge_cache_redis_corrupt_total{~}[~]))`, "corrupt"}, {`sum(rate(listedge_cache_redis_dropped_total{~}[~]))`, "dropped"}}},
	}},
	{"Freshness", []panel{
		{"What is freshness based on?",
			"By node: followed changes; nothing at the moment (untrusted: each page is read from Postgres); or the age of pages (ttl: --cache-ttl).",
			"state-timeline", "short",
			[]step{{0, "orange", "ttl"}, {1, "red", "untrusted"}, {2, "green", "followed"}}, 0,
			[]query{{`2 * listedge_freshness_mode{~, mode="followed"} + ignoring (mode) listedge_freshness_mode{~, mode="untrusted"}`, "{{instance}}"}}},
		{"How old is the last proof?",
			"Age of the last proof that every change was seen. Above --freshness-bound no page is served from a cache as fresh.",
			"timeseries", "s", warnAt(0.25, 0.5), 0,
			[]query{{`listedge_freshness_proof_age_seconds{~}`, "{{instance}}"}, {`max(listedge_freshness_bound_seconds{~})`, "bound"}}},
		{"How soon is a commit known?",
			"From the commit, by the primary's clock, until a node applied it, by its own clock. Clocks that differ show here.", "timeseries", "s", warnAt(0.1, 0.5), 0,
			[]query{{quantile("0.5", "listedge_freshness_commit_to_applied_seconds", `{~}`), "half of them"},
				{quantile("0.99", "listedge_freshness_commit_to_applied_seconds", `{~}`), "99 of 100"},
				{`sum(rate(listedge_freshness_commit_to_applied_seconds_sum{~}[~])) / sum(rate(listedge_freshness_commit_to_applied_seconds_count{~}[~]))`, "on average"}}},
		{"What became of what was read?",
			"merged: the rows are in memory. All others are read again: wrong-server: a connection, or a replica, of another " +
				"server. too-old, any-row: changes that they lack are not remembered, or do not name their rows. resynced: the node began again. " +
				"dropped: too many waited.", "timeseries", "ops", nil, 0,
			[]query{{`sum by (outcome) (rate(listedge_replica_fills_total{~}[~]))`, "{{outcome}}"},
				{`sum(listedge_replica_parked_fills{~})`, "waiting for a heartbeat"}}},
		{"Do the rows in memory equal Postgres?", "Pages that nodes compared with the primary (--verify), by list, and comparisons that failed, also of pages that were " +
			"read: there must be none (ListedgeRowsDiffer).", "timeseries", "ops", nil, 0,
			[]query{{`sum by (list) (rate(listedge_replica_verified_pages_total{~}[~]))`, "{{list}}"},
				{`sum by (list, kind) (rate(listedge_replica_mismatches_total{~}[~]))`, "{{list}}: {{kind}} differ"}}},
		{"Who follows?", "The node that holds the replication slot. Another node takes over within a second; a gap is ListedgeNoFollower.", "state-timeline", "short",
			[]step{{0, "text", "standby"}, {1, "blue", "follows"}}, 0,
			[]query{{`listedge_freshness_follower{%}`, "{{instance}}"}}},
		{"How far behind is the follower?", "WAL not yet decoded, in bytes.", "timeseries", "bytes", warnAt(16<<20, 64<<20), 0,
			[]query{{`max(listedge_freshness_follower_lag_bytes{%})`, "lag"}}},
		{"How long behind is the follower?", "How long the last heartbeat waited until the WAL before it was decoded.", "timeseries", "s", warnAt(0.1, 0.5), 0,
			[]query{{`max(listedge_freshness_follower_lag_seconds{%})`, "lag"}}},
		{"Time since a heartbeat", "The follower publishes 30 heartbeats a second.", "timeseries", "s", warnAt(0.25, 0.5), 0,
			[]query{{`max(listedge_freshness_follower_heartbeat_age_seconds{%})`, "age"}}},
		{"How much WAL does the slot keep?",
			"On the primary's disk. It must stay far below max_slot_wal_keep_size.", "timeseries", "bytes", warnAt(256<<20, 512<<20), 0,
			[]query{{`max(listedge_freshness_retained_wal_bytes{%})`, "retained"}}},
		{"Changes", "Transactions published by the follower, and entries that all nodes applied.", "timeseries", "ops", nil, 0,
			[]query{{`sum(rate(listedge_freshness_commits_total{%}[~]))`, "published"},
				{`sum by (instance) (rate(listedge_freshness_entries_total{~}[~]))`, "applied by {{instance}}"}}},
		{"Why did nodes begin again?",
			"They discarded what they knew of changes. join: a start. epoch: a new log, after a crash or fail-over. gap: the log " +
				"lost entries that the node needed. undecodable: an entry of a newer version.", "timeseries", "short", nil, 0,
			[]query{{`sum by (cause) (increase(listedge_freshness_resyncs_total{~}[~]))`, "{{cause}}"},
				{`sum(increase(listedge_freshness_terms_total{~}[~]))`, "terms begun"}}},
		{"Do all nodes follow one epoch?", "One line if they do. A new one follows a crash or fail-over of Postgres, or a lost slot.", "timeseries", "short", nil, 0,
			[]query{{`count by (epoch) (listedge_freshness_epoch_info{~})`, "{{epoch}}"}}},
	}},
	{"Limits", []panel{
		{"Admitted and refused", "By what decided. local_fallback: without Redis; quota: a quota that is used up.", "timeseries", "reqps", nil, 0,
			[]query{{`sum by (decision, source) (rate(listedge_limiter_decisions_total{~}[~])) > 0`, "{{decision}} {{source}}"}}},
		{"Which quotas are nearly used?", "Used part of the fullest quotas, as nodes last heard of them.", "timeseries", "percentunit", warnAt(0.8, 1), 1,
			[]query{{`max by (workspace) (listedge_limiter_quota_used_ratio{~})`, "{{workspace}}"}}},
		{"Which nodes decide without Redis?", "Share of the time.", "timeseries", "percentunit", warnAt(0.01, 0.5), 1,
			[]query{{`rate(listedge_limiter_degraded_seconds_total{~}[~])`, "{{instance}}"}}},
		{"Calls to Redis per request",
			"Script calls for buckets by requests. Leases keep it far below 1; many keys with few requests each raise it.", "timeseries", "short", nil, 0,
			[]query{{`sum(rate(listedge_limiter_redis_calls_total{~}[~])) / sum(rate(listedge_http_requests_total{~, ` + pages + `}[~]))`, "calls"},
				{`sum(rate(listedge_limiter_redis_trips_total{~}[~])) / sum(rate(listedge_http_requests_total{~, ` + pages + `}[~]))`, "round trips"}}},
		{"How long do calls to Redis take?",
			"99th percentile by purpose: pages, or limits. With the time to get a connection.", "timeseries", "s", warnAt(0.005, 0.02), 0,
			[]query{{quantile("0.99", redisDuration, `{~}`, "purpose"), "{{purpose}}"}}},
		{"Does Redis answer for limits?", "Trips that failed, or took longer than a request waits.", "timeseries", "ops", nil, 0,
			[]query{{`sum by (instance) (rate(listedge_limiter_redis_errors_total{~}[~]))`, "{{instance}} failed"},
				{`sum by (instance) (rate(listedge_limiter_redis_timeouts_total{~}[~]))`, "{{instance}} late"}}},
		{"Leases", "Tokens leased per second, and leased tokens not yet spent.", "timeseries", "short", nil, 0,
			[]query{{`sum(rate(listedge_limiter_leased_tokens_total{~}[~]))`, "leased per second"}, {`sum(listedge_limiter_leased_tokens{~})`, "held"}}},
		{"Does Redis evict nothing?",
			"0 if its maxmemory-policy allows it. An evicted bucket is full again; a gap in the log makes all nodes begin again.",
			"timeseries", "short", lowIsBad(0.5, 1), 1,
			[]query{{`listedge_check_up{~, check="redis eviction"}`, "{{instance}}"}}},
		{"Spent while Redis was down", "Requests admitted without Redis, and buckets not yet debited.", "timeseries", "short", nil, 0,
			[]query{{`sum(rate(listedge_limiter_decisions_total{~, decision="allowed", source="local_fallback"}[~]))`, "admitted per second"},
				{`sum(listedge_limiter_undebited_buckets{~})`, "buckets owing"}}},
		{"How many nodes does each node see?",
			"Live nodes, by their heartbeats in Redis. While Redis is down, each enforces its share by this count.", "timeseries", "short", nil, 0,
			[]query{{`listedge_limiter_nodes{~}`, "{{instance}}"}}},
	}},
	{"Postgres", []panel{
		{"Page queries", "By outcome; overloaded ones were refused before they reached Postgres.", "timeseries", "reqps", nil, 0,
			[]query{{`sum by (outcome) (rate(listedge_origin_fetches_total{~}[~]))`, "{{outcome}}"}}},
		{"How long do queries take?",
			"99th percentile by server and outcome, with the time to get a connection. The time in the queue of the node is not in it.",
			"timeseries", "s", warnAt(0.1, 1), 0,
			[]query{{quantile("0.99", queryDuration, `{~}`, "server", "outcome"), "{{server}} {{outcome}}"}}},
		{"How long does a query take on average?", "By server.", "timeseries", "s", nil, 0,
			[]query{{mean(queryDuration, "_sum", "_count", "server"), "{{server}}"}}},
		{"Do replicas take the misses?",
			"By outcome; all but ok were read from the primary instead. lagging is normal right after a change.", "timeseries", "reqps", nil, 0,
			[]query{{`sum by (outcome) (rate(listedge_origin_standby_fetches_total{~}[~]))`, "{{outcome}}"}}},
		{"Replicas not queried", "By node: replicas that failed several times in a row.", "timeseries", "short", warnAt(0.5, 1), 0,
			[]query{{`listedge_origin_standby_breakers_open{~}`, "{{instance}}"}}},
		{"Running and waiting", "Page queries in flight, and those waiting for their turn.", "timeseries", "short", nil, 0,
			[]query{{`sum by (instance) (listedge_origin_queries_running{~})`, "{{instance}} running"},
				{`sum by (instance) (listedge_origin_queries_queued{~})`, "{{instance}} waiting"}}},
		{"Are the connections used up?", "Share of --database-connections in use.", "timeseries", "percentunit", warnAt(0.8, 0.95), 1,
			[]query{{`(listedge_origin_connections{~} - listedge_origin_connections_idle{~}) / listedge_origin_connections_max{~}`, "{{instance}}"}}},
		{"Waiting for a connection", "Mean time a query waited for a connection.", "timeseries", "s", warnAt(0.01, 0.1), 0,
			[]query{{mean("listedge_origin_connections", "_wait_seconds_total", "_acquired_total", "instance"), "{{instance}}"}}},
		{"Which breakers are open?",
			"1 while a node does not call a server, because it failed several times in a row. The node tries again several times a second.",
			"timeseries", "short", warnAt(0.5, 1), 1,
			[]query{{`max by (instance) (max_over_time(listedge_origin_breaker_open{~}[~]))`, "{{instance}} Postgres for pages"},
				{`max by (instance) (max_over_time(listedge_key_breaker_open{~}[~]))`, "{{instance}} Postgres for keys"},
				{`max by (instance) (max_over_time(listedge_cache_redis_breaker_open{~}[~]))`, "{{instance}} Redis for pages"},
				{`max by (instance) (max_over_time(listedge_limiter_breaker_open{~}[~]))`, "{{instance}} Redis for limits"}}},
	}},
	{"Keys", []panel{
		{"Keys looked up",
			"known costs nothing; many unknown: a client guesses keys; within-grace stay valid while Postgres fails; failed get 503.", "timeseries", "reqps", nil, 0,
			[]query{{`sum by (outcome) (rate(listedge_key_lookups_total{~}[~]))`, "{{outcome}}"}}},
		{"Queries for keys", "Per second, refreshes included.", "timeseries", "ops", nil, 0,
			[]query{{`sum by (instance) (rate(listedge_key_queries_total{~}[~]))`, "{{instance}}"}}},
		{"Known keys", "By node.", "timeseries", "short", nil, 0,
			[]query{{`listedge_keys_known{~}`, "{{instance}}"}}},
		{"Is the use of keys written?",
			"Age of the oldest counts that are not in Postgres yet. Nodes write every 5 s. A node that lacks the right to write " +
				"says so in its log, and doctor prints the GRANT.", "timeseries", "s", warnAt(60, 600), 0,
			[]query{{`listedge_usage_unwritten_seconds{~}`, "{{instance}}"}}},
		{"Requests that no usage counts",
			"Per second: more keys wait to be written than a node keeps, because Postgres was down for long.", "timeseries", "reqps", warnAt(0.1, 10), 0,
			[]query{{`sum by (instance) (rate(listedge_usage_lost_requests_total{~}[~]))`, "{{instance}}"}}},
	}},
	{"Processes", []panel{
		{"Processor", "Cores used.", "timeseries", "short", nil, 0,
			[]query{{`rate(process_cpu_seconds_total{~}[~])`, "{{instance}}"}}},
		{"Age", "Since the process began. A sawtooth is a node that crashes again and again.", "timeseries", "s", nil, 0,
			[]query{{`time() - process_start_time_seconds{~}`, "{{instance}}"}}},
		{"Memory", "Resident. Expect --cache-memory and some hundred MB.", "timeseries", "bytes", nil, 0,
			[]query{{`process_resident_memory_bytes{~}`, "{{instance}}"}}},
		{"Goroutines", "A number that only grows is a leak: take /debug/pprof/goroutine.", "timeseries", "short", nil, 0,
			[]query{{`go_goroutines{~}`, "{{instance}}"}}},
		{"Files", "Share of the limit that is open; each connection is one.", "timeseries", "percentunit", warnAt(0.7, 0.9), 1,
			[]query{{`process_open_fds{~} / process_max_fds{~}`, "{{instance}}"}}},
		{"Time until the certificate expires", "Of the public listener; 0 without TLS. ListedgeCertificateExpires.", "timeseries", "s", nil, 0,
			[]query{{`clamp_min(listedge_tls_certificate_expiry_timestamp_seconds{~} - time(), 0)`, "{{instance}}"}}},
		{"Lost lines of the log", "By node. The reader of its standard error is too slow, hangs or is gone: look at what collects logs there.", "timeseries", "short",
			warnAt(1, 1000), 0,
			[]query{{`sum by (instance) (increase(listedge_log_lines_lost_total{~}[~]))`, "{{instance}}"}}},
		{"Garbage collection", "Longest recent pause.", "timeseries", "s", nil, 0,
			[]query{{`max by (instance) (go_gc_duration_seconds{~})`, "{{instance}}"}}},
		{"What runs where?", "Version and revision of each process.", "table", "short", nil, 0,
			[]query{{`max by (instance, version, revision, goversion) (listedge_build_info{~})`, ""}}},
	}},
}
