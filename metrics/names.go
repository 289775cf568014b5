package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/limiter"
	"listedge/origin"
	"listedge/origin/apikey"
	"listedge/origin/follower"
	"listedge/origin/usage"
)

// Every metric: its name (behind "listedge_"), its help, its labels, and the
// number of its layer that it shows. Names are part of what operators rely on:
// dashboards and alerts use them.

// value is a metric without labels.
func value[S any](name, help string, read func(S) any) metric[S] {
	return metric[S]{name, help, nil, func(s S, set set) { set(read(s)) }}
}

const prefix = "listedge_"

// The metrics that are recorded when something happens; all others are read at each scrape.

func newEdge() *Edge {
	e := &Edge{
		Connections: func() (open, limit int64) { return 0, 0 },
		requests:    counters("http_requests_total", "Requests answered, by route and status.", "route", "status"),
		durations: histograms("http_request_duration_seconds", "Time from the arrival of a request until its response is ready to send, by route and outcome.",
			[]float64{.001, .01, .1}, "route", "outcome"), // the objective in deploy/prometheus/rules uses 100 ms
		pages:     counters("cache_requests_total", "Pages looked up, by where they were found; stale ones were served because the origin failed.", "tier"),
		collapsed: counters("cache_collapsed_total", "Pages that came from the look-up of another request."),
	}
	e.begin()
	return e
}

func newTimings() timings {
	return timings{
		commits: histograms("freshness_commit_to_applied_seconds",
			"Time from a commit, by the primary's clock, until this node applied it, by its own clock.", []float64{.001, .01, .1, 1}),
		queries: histograms("origin_query_duration_seconds", "Time that queries for pages took, from asking for a connection to the last row, by the server "+
			"(primary, or the address of a replica) and outcome.", []float64{.01, .1}, "server", "outcome"),
		redisCalls: histograms("redis_call_duration_seconds", "Time that calls to Redis took, by purpose (pages or limits): a command or a pipeline, with the "+
			"time to get a connection, failed calls included.", []float64{.01}, "purpose"),
	}
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
}

// histograms have native buckets, which grow by 19 %, and classic ones with these upper bounds in
// seconds. Each classic bucket is one more series for every combination of labels, so there are
// few; scrapers that negotiate protobuf may store the native ones.
func histograms(name, help string, bounds []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: bounds, NativeHistogramBucketFactor: 1.19}, labels)
}

// newBuild says which version of the program runs.
func newBuild(version, revision string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "build_info", Help: "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "goversion": runtime.Version()}}, func() float64 { return 1 })
}

// nodeMetrics are of what the node as a whole knows.
var nodeMetrics = []metric[Sources]{
	value("ready", "1 while /readyz answers 200.", func(s Sources) any { return s.Ready() }),
	value("key_breaker_open", "1 while keys are not looked up in Postgres, because it failed several times in a row.",
		func(s Sources) any { return s.KeyBreakerOpen() }),
	{"check_up", "1 while a check of /readyz passes, which runs every second: postgres (the primary), redis (it takes writes), replica (with its address), …; " +
		"0 after two failures.", []string{"check"}, func(s Sources, set set) {
		for _, c := range s.Checks() {
			set(c.Up, c.Name)
		}
	}},
	value("tls_certificate_expiry_timestamp_seconds",
		"When the first certificate in the chain of the public listener expires, in seconds since 1970; 0 without TLS.",
		func(s Sources) any {
			if expiry := s.CertificateExpiry(); !expiry.IsZero() {
				return expiry.Unix()
			}
			return 0
		}),
}

var edgeMetrics = []metric[*Edge]{
	value("http_connections", "Open connections of the public listener.", func(e *Edge) any {
		open, _ := e.Connections()
		return open
	}),
	value("http_connections_limit", "Connections of the public listener that may be open at once; above, clients are refused.",
		func(e *Edge) any {
			_, limit := e.Connections()
			return limit
		}),
}

var cacheMetrics = []metric[cache.Stats]{
	value("cache_fills_total", "Pages read from Postgres: one statement reads the rows of a page, and of pages behind it.",
		func(s cache.Stats) any { return s.Fills }),
	value("cache_fill_errors_total", "Reads of pages from Postgres that failed.", func(s cache.Stats) any { return s.FillErrors }),
	value("cache_evictions_total", "Pages evicted from memory, or too large to be stored there.", func(s cache.Stats) any { return s.Evicted }),
	value("cache_memory_bytes", "Memory that pages occupy.", func(s cache.Stats) any { return s.MemoryBytes }),
	value("cache_memory_budget_bytes", "Memory that the cache may use (--cache-memory).", func(s cache.Stats) any { return s.MemoryBudget }),
	value("cache_redis_calls_total", "Calls to Redis for pages.", func(s cache.Stats) any { return s.RedisCalls }),
	value("cache_redis_failures_total", "Calls to Redis for pages that failed, timed out, or were not made because the breaker was open or no connection was "+
		"free.", func(s cache.Stats) any { return s.RedisFailures }),
	value("cache_redis_corrupt_total", "Values in Redis that were not the page they should have been.", func(s cache.Stats) any { return s.RedisCorrupt }),
	value("cache_redis_dropped_total", "Pages not stored in Redis, because too many were waiting or they were too large.",
		func(s cache.Stats) any { return s.RedisDropped }),
	value("cache_redis_breaker_open", "1 while pages are not looked up in Redis, because it failed several times in a row.",
		func(s cache.Stats) any { return s.RedisBreakerOpen }),
	value("cache_assembled_pages_total", "Pages made of rows in memory, without a query, because rows had changed or the page was not made yet.",
		func(s cache.Stats) any { return s.Cut }),
	value("replica_rows", "Rows in memory.", func(s cache.Stats) any { return s.Replica.Rows }),
	value("replica_lists", "Lists (workspace, collection, order, filters and search) of which rows are in memory.",
		func(s cache.Stats) any { return s.Replica.Lists }),
	value("replica_ranges", "Parts of lists, each without a gap, that are in memory.", func(s cache.Stats) any { return s.Replica.Ranges }),
	value("replica_bytes", "Memory that rows occupy; a part of cache_memory_bytes.", func(s cache.Stats) any { return s.Replica.Bytes }),
	value("replica_remembered_bytes", "Memory that recent changes occupy; they are applied to rows that Postgres read before them.",
		func(s cache.Stats) any { return s.Replica.ChangeBytes }),
	value("replica_parked_fills", "Reads from Postgres whose rows are ahead of the log of changes and wait for it.",
		func(s cache.Stats) any { return s.Replica.Parked }),
	value("replica_applied_rows_total", "Rows that the log of changes replaced or removed in memory.", func(s cache.Stats) any { return s.Replica.Counts.Rows }),
	{"replica_fills_total", "Reads of pages from Postgres, by what became of their rows: merged into those in memory, or not: resynced " +
		"(the node began again meanwhile), wrong-server, " +
		"too-old or any-row (changes that they lack are not remembered, or do not name their rows), inconsistent (they differ from rows in memory, which is a " +
		"bug), dropped (too many waited).", []string{"outcome"}, func(s cache.Stats, set set) {
		for _, outcome := range cache.Outcomes() {
			set(s.Merges[outcome], outcome)
		}
	}},
	{"replica_dropped_ranges_total", "Parts of lists dropped from memory, by cause: row (it is not known whether, or how, a list shows a row), " +
		"table (a change did not name " +
		"its rows), budget (memory was full).", []string{"cause"}, func(s cache.Stats, set set) {
		set(s.Replica.Uncovered, "row")
		set(s.Replica.Forgotten, "table")
		set(s.Replica.Evicted, "budget")
	}},
	{"freshness_mode", "1 for what freshness is based on: followed changes, nothing at the moment (untrusted), or the age of pages (ttl).", []string{"mode"},
		func(s cache.Stats, set set) {
			for mode := range cache.ModeFollowed + 1 {
				set(s.Mode == mode, mode.String())
			}
		}},
	value("freshness_bound_seconds", "Age of a commit that a fresh page may omit (--freshness-bound); 0 if changes are not followed.",
		func(s cache.Stats) any { return s.Bound }),
	value("freshness_proof_age_seconds", "Age of the last proof that all changes have been seen; pages are fresh while it is below --freshness-bound.",
		func(s cache.Stats) any { return s.ProofAge }),
}

var feedMetrics = []metric[changefeed.Stats]{
	{"freshness_epoch_info", "The epoch of the log of changes that this node reads.", []string{"epoch"}, func(s changefeed.Stats, set set) {
		if s.Epoch != "" {
			set(1, s.Epoch)
		}
	}},
	value("freshness_entries_total", "Entries of the log of changes applied.", func(s changefeed.Stats) any { return s.Entries }),
	{"freshness_resyncs_total", "Times this node discarded what it knew of changes and began again, by cause.", []string{"cause"},
		func(s changefeed.Stats, set set) {
			for _, cause := range changefeed.ResetCauses() {
				set(s.Resets[cause], cause)
			}
		}},
}

var followerMetrics = []metric[follower.Stats]{
	value("freshness_follower", "1 on the node that holds the replication slot.", func(s follower.Stats) any { return s.Following }),
	value("freshness_follower_lag_bytes", "WAL of the primary not yet decoded at the last heartbeat, on the follower.",
		func(s follower.Stats) any { return s.Lag }),
	value("freshness_follower_lag_seconds", "How long the last heartbeat waited until the WAL before it was decoded, on the follower.",
		func(s follower.Stats) any { return s.LagTime }),
	value("freshness_follower_heartbeat_age_seconds", "Time since the follower published a heartbeat.", func(s follower.Stats) any { return s.HeartbeatAge }),
	value("freshness_retained_wal_bytes", "WAL that the primary keeps for the replication slot, as this node last saw it.",
		func(s follower.Stats) any { return s.Retained }),
	value("freshness_commits_total", "Transactions published by this node.", func(s follower.Stats) any { return s.Commits }),
	value("freshness_terms_total", "Times this node became the follower.", func(s follower.Stats) any { return s.Terms }),
}

var limiterMetrics = []metric[limiter.Stats]{
	{"limiter_decisions_total", "Requests admitted or refused, by what decided; those refused by the quota of their workspace are apart.",
		[]string{"decision", "source"}, func(s limiter.Stats, set set) {
			for i := range s.Allowed {
				source := limiter.Source(i).String()
				set(s.Allowed[i], "allowed", source)
				set(s.Refused[i], "refused", source)
			}
		}},
	{"limiter_quota_used_ratio", "Used part of the quotas that are used the most in their present period, as this node last knew.",
		[]string{"workspace"}, func(s limiter.Stats, set set) {
			for _, q := range s.Quotas {
				set(q.Part, q.Workspace)
			}
		}},
	value("limiter_redis_trips_total", "Round trips to Redis for buckets and quotas.", func(s limiter.Stats) any { return s.RedisTrips }),
	value("limiter_redis_calls_total", "Calls of the script in the round trips to Redis; one trip carries several.",
		func(s limiter.Stats) any { return s.RedisCalls }),
	value("limiter_redis_errors_total", "Round trips to Redis for buckets and quotas that failed.", func(s limiter.Stats) any { return s.RedisErrors }),
	value("limiter_redis_timeouts_total", "Round trips to Redis for buckets and quotas that took longer than a request waits.",
		func(s limiter.Stats) any { return s.RedisTimeouts }),
	value("limiter_leased_tokens_total", "Tokens leased from Redis.", func(s limiter.Stats) any { return s.TokensLeased }),
	value("limiter_leased_tokens", "Leased tokens that this node may still spend.", func(s limiter.Stats) any { return s.LeasedHeld }),
	value("limiter_nodes", "Nodes of the fleet that have sent a heartbeat to Redis within a minute, as last counted; 0 without Redis.", func(s limiter.Stats) any { return s.Nodes }),
	value("limiter_undebited_buckets", "Buckets and quotas from which this node spent tokens while Redis was away, and which Redis has not debited yet.",
		func(s limiter.Stats) any { return s.Owing }),
	value("limiter_degraded_seconds_total", "Time for which this node decided without Redis.", func(s limiter.Stats) any { return s.Degraded }),
	value("limiter_breaker_open", "1 while this node decides without Redis, because it failed several times in a row.",
		func(s limiter.Stats) any { return s.Breaker != "" && s.Breaker != "closed" }),
}

var originMetrics = []metric[origin.Stats]{
	{"origin_fetches_total", "Pages read from the primary, by outcome; overloaded ones were refused before they reached it.", []string{"outcome"},
		func(s origin.Stats, set set) {
			set(s.Fetched, "ok")
			set(s.Failed, "failed")
			set(s.TimedOut, "timeout")
			set(s.Overloaded, "overloaded")
		}},
	{"origin_standby_fetches_total", "Pages requested from standbys, by outcome; all but ok are read from the primary instead.", []string{"outcome"},
		func(s origin.Stats, set set) {
			var sum origin.StandbyStats
			for _, standby := range s.Standbys {
				sum.Fetched += standby.Fetched
				sum.Behind += standby.Behind
				sum.Foreign += standby.Foreign
				sum.Failed += standby.Failed
			}
			set(sum.Fetched, "ok")
			set(sum.Behind, "lagging")
			set(sum.Foreign, "wrong-server")
			set(sum.Failed, "failed")
		}},
	value("origin_standby_breakers_open", "Standbys that are not queried, because they failed several times in a row.", func(s origin.Stats) any {
		open := 0
		for _, standby := range s.Standbys {
			if standby.BreakerOpen {
				open++
			}
		}
		return open
	}),
	value("origin_queries_running", "Page queries in flight.", func(s origin.Stats) any { return s.Running }),
	value("origin_queries_queued", "Page queries that wait for their turn.", func(s origin.Stats) any { return s.Queued }),
	value("origin_breaker_open", "1 while pages are not read from Postgres, because it failed several times in a row.",
		func(s origin.Stats) any { return s.BreakerOpen }),
	value("origin_connections", "Connections to Postgres for pages.", func(s origin.Stats) any { return s.Pool.Total }),
	value("origin_connections_idle", "Connections to Postgres for pages that are idle.", func(s origin.Stats) any { return s.Pool.Idle }),
	value("origin_connections_max", "Connections to Postgres for pages that may be open (--database-connections).",
		func(s origin.Stats) any { return s.Pool.Max }),
	value("origin_connections_acquired_total", "Times a connection was taken from the pool.", func(s origin.Stats) any { return s.Pool.Acquired }),
	value("origin_connections_wait_seconds_total", "Time spent waiting for a connection from the pool.", func(s origin.Stats) any { return s.Pool.Waited }),
}

var keyMetrics = []metric[apikey.Stats]{
	{"key_lookups_total", "Well-formed keys looked up by requests: known to this node, loaded from Postgres, unknown, known from before while Postgres fails " +
		"(within-grace), or failed.", []string{"outcome"}, func(s apikey.Stats, set set) {
		set(s.Hits, "known")
		set(s.Loaded, "loaded")
		set(s.Unknown, "unknown")
		set(s.WithinGrace, "within-grace")
		set(s.Failures, "failed")
	}},
	value("key_queries_total", "Queries to Postgres for keys, refreshes included.", func(s apikey.Stats) any { return s.Queries }),
	value("keys_known", "Keys that this node knows.", func(s apikey.Stats) any { return s.Known }),
}

var usageMetrics = []metric[usage.Stats]{
	value("usage_unwritten_seconds", "Age of the oldest counts of what keys were used for that are not in Postgres yet; 0 = all are.",
		func(s usage.Stats) any {
			if s.Since.IsZero() {
				return time.Duration(0)
			}
			return time.Since(s.Since)
		}),
	value("usage_lost_requests_total", "Requests that usage does not count: Postgres could not be written to, and too many keys were waiting.",
		func(s usage.Stats) any { return s.Lost }),
}
