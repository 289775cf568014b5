package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"listedge/cache"
	"listedge/cache/replica"
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

const prefix = "listedge_"

// newRegistry makes the metrics that are recorded when something happens; all others are read at
// each scrape.
func newRegistry() *Registry {
	r := prometheus.NewRegistry()
	return &Registry{
		registry: r,
		Edge: &Edge{
			requests: counters(r, "http_requests_total", "Requests answered, by route and status.", "route", "status"),
			durations: histograms(r, "http_request_duration_seconds", "Time from the arrival of a request until its response is ready to send, by route and outcome.",
				[]float64{.001, .01, .1}, "route", "outcome"), // the objective in deploy/prometheus/rules uses 100 ms
			pages:     counters(r, "cache_requests_total", "Pages looked up, by where they were found; stale ones were served because the origin failed.", "tier"),
			collapsed: counters(r, "cache_collapsed_total", "Pages that came from the look-up of another request."),
			tracked: counters(r, "tracking_pages_total", "Pages for clients that track a list, by kind: none (nothing has changed), delta (the rows that have), "+
				"full (a part of the whole list). The first page of a whole list has a cause: first (the client has nothing), epoch (another log of changes, or "+
				"another description of the list), joined (the client was here before this node's log begins), dropped (too many rows have changed since), "+
				"unnamed (a change did not name its rows).", "kind", "cause"),
		},
		commits: histograms(r, "freshness_commit_to_applied_seconds",
			"Time from a commit, by the primary's clock, until this node applied it, by its own clock.", []float64{.001, .01, .1, 1}),
		queries: histograms(r, "origin_query_duration_seconds", "Time that queries for pages took, from asking for a connection to the last row, by the server "+
			"(primary, or the address of a replica) and outcome.", []float64{.01, .1}, "server", "outcome"),
		redisCalls: histograms(r, "redis_call_duration_seconds", "Time that calls to Redis took, by purpose (pages or limits): a command or a pipeline, with the "+
			"time to get a connection, failed calls included.", []float64{.01}, "purpose"),
	}
}

func counters(to prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(to).NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
}

// histograms have native buckets, which grow by 19 %, and classic ones with these upper bounds in
// seconds. Each classic bucket is one more series for every combination of labels, so there are
// few; scrapers that negotiate protobuf may store the native ones.
func histograms(to prometheus.Registerer, name, help string, bounds []float64, labels ...string) *prometheus.HistogramVec {
	return promauto.With(to).NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: bounds,
		NativeHistogramBucketFactor: 1.19}, labels)
}

// Snapshot is what the layers know at a scrape. A node that follows no changes has zeros in
// Follower and Feed.
type Snapshot struct {
	Connections, MaxConnections int64 // of the public listener: open, and how many may be

	Cache    cache.Stats
	Limiter  limiter.Stats
	Origin   origin.Stats
	Keys     apikey.Stats
	Usage    usage.Stats
	Follower follower.Stats
	Feed     changefeed.Stats

	KeyBreakerOpen, Ready bool

	Checks            map[string]bool // those that have run, as /readyz names them: passed, or failed only once
	CertificateExpiry time.Time       // of the public listener; zero = it has no certificate
	LogLinesLost      uint64
}

// metrics sends everything that the layers know.
func (s Snapshot) metrics(send scrape) {
	send.value("http_connections", "Open connections of the public listener.", s.Connections)
	send.value("http_connections_limit", "Connections of the public listener that may be open at once; above, clients are refused.", s.MaxConnections)
	send.value("ready", "1 while /readyz answers 200.", s.Ready)
	send.value("key_breaker_open", "1 while keys are not looked up in Postgres, because it failed several times in a row.", s.KeyBreakerOpen)
	checks := send.labelled("check_up", "1 while a check of /readyz passes, which runs every second: postgres (the primary), redis (it takes writes), "+
		"replica (with its address), …; 0 after two failures.", "check")
	for name, up := range s.Checks {
		checks(up, name)
	}
	send.value("tls_certificate_expiry_timestamp_seconds",
		"When the first certificate in the chain of the public listener expires, in seconds since 1970; 0 without TLS.",
		max(0, s.CertificateExpiry.Unix())) // the zero time is long before
	send.value("log_lines_lost_total", "Lines of the log that standard error did not take: its reader was too slow, or gone.", s.LogLinesLost)
	sendCache(send, s.Cache)
	sendFeed(send, s.Feed)
	sendFollower(send, s.Follower)
	sendLimiter(send, s.Limiter)
	sendOrigin(send, s.Origin)
	sendKeys(send, s.Keys)
	sendUsage(send, s.Usage)
}

func sendCache(send scrape, s cache.Stats) {
	send.value("cache_fills_total", "Pages read from Postgres: one statement reads the rows of a page, and of pages behind it.", s.Fills)
	send.value("cache_fill_errors_total", "Reads of pages from Postgres that failed.", s.FillErrors)
	send.value("cache_evictions_total", "Pages evicted from memory, or too large to be stored there.", s.Evicted)
	send.value("cache_memory_bytes", "Memory that pages occupy.", s.MemoryBytes)
	send.value("cache_memory_budget_bytes", "Memory that the cache may use (--cache-memory).", s.MemoryBudget)
	send.value("cache_redis_calls_total", "Calls to Redis for pages.", s.RedisCalls)
	send.value("cache_redis_failures_total",
		"Calls to Redis for pages that failed, timed out, or were not made because the breaker was open or no connection was free.", s.RedisFailures)
	send.value("cache_redis_corrupt_total", "Values in Redis that were not the page they should have been.", s.RedisCorrupt)
	send.value("cache_redis_dropped_total", "Pages not stored in Redis, because too many were waiting or they were too large.", s.RedisDropped)
	send.value("cache_redis_breaker_open", "1 while pages are not looked up in Redis, because it failed several times in a row.", s.RedisBreakerOpen)
	send.value("cache_assembled_pages_total",
		"Pages made of rows in memory, without a query, because rows had changed or the page was not made yet.", s.Cut)
	send.value("cache_proven_pages_total", "Pages that memory gave to requests with Cache-Control: no-cache, which a proof younger than the request allowed. "+
		"Those read from Postgres have the outcome bypass.", s.Proven)
	send.value("replica_rows", "Rows in memory.", s.Replica.Rows)
	send.value("replica_lists", "Lists (each by tenant, order, filters and search) of which rows are in memory.", s.Replica.Lists)
	send.value("replica_ranges", "Parts of lists, each without a gap, that are in memory.", s.Replica.Ranges)
	send.value("replica_bytes", "Memory that rows occupy; a part of cache_memory_bytes.", s.Replica.Bytes)
	send.value("replica_remembered_bytes",
		"Memory that recent changes occupy; they are applied to rows that Postgres read before them.", s.Replica.ChangeBytes)
	send.value("replica_parked_fills", "Reads from Postgres whose rows are ahead of the log of changes and wait for it.", s.Replica.Parked)
	send.value("replica_applied_rows_total", "Rows that the log of changes replaced or removed in memory.", s.Replica.Counts.Rows)
	fills := send.labelled("replica_fills_total", "Reads of pages from Postgres, by what became of their rows: merged into those in memory, or not: "+
		"resynced (the node began again meanwhile), wrong-server, too-old or any-row (changes that they lack are not remembered, or do not name their rows), "+
		"inconsistent (they differ from rows in memory, which is a bug), dropped (too many waited).", "outcome")
	for outcome, n := range s.Replica.Fills {
		if o := replica.Outcome(outcome); o != replica.Parked { // it has another one later
			fills(n, o.String())
		}
	}
	verified := send.labelled("replica_verified_pages_total", "Pages in memory that were compared with what the primary returned (--verify), by list.", "list")
	mismatches := send.labelled("replica_mismatches_total", "Comparisons of rows in memory with those of the database that failed, also by other reads than "+
		"--verify, by list and kind: rows (a version, which rows there are, their order or a filter) or fold (what searches and orders by name compare).",
		"list", "kind")
	for list, v := range s.Replica.Verified {
		verified(v.Pages, list)
		for kind, n := range v.Mismatches {
			mismatches(n, list, kind)
		}
	}
	send.by("cause", "replica_dropped_ranges_total", "Parts of lists dropped from memory, by cause: row (it is not known whether, or how, a list "+
		"shows a row), table (a change did not name its rows), budget (memory was full).",
		series{"row": s.Replica.Uncovered, "table": s.Replica.Forgotten, "budget": s.Replica.Evicted})
	send.value("tracking_ids", "Keys of changed rows that are remembered for clients that track a list.", s.Replica.IDs)
	send.value("tracking_bytes", "Memory that these keys occupy; a part of cache_memory_bytes.", s.Replica.IDBytes)
	horizon := time.Duration(0)
	if !s.Replica.Horizon.IsZero() {
		horizon = time.Since(s.Replica.Horizon)
	}
	send.value("tracking_horizon_seconds", "How far back the changed rows of all tables are remembered: a client that tracks a list and asks more often gets "+
		"what has changed. Changes that do not name their rows are not in it: they send the whole list to all clients of it, once.", horizon)
	modes := send.labelled("freshness_mode",
		"1 for what freshness is based on: followed changes, nothing at the moment (untrusted), or the age of pages (ttl).", "mode")
	for mode := range cache.ModeFollowed + 1 {
		modes(s.Mode == mode, mode.String())
	}
	send.value("freshness_bound_seconds", "Age of a commit that a fresh page may omit (--freshness-bound); 0 if changes are not followed.", s.Bound)
	send.value("freshness_proof_age_seconds",
		"Age of the last proof that all changes have been seen; pages are fresh while it is below --freshness-bound.", s.ProofAge)
}

func sendFeed(send scrape, s changefeed.Stats) {
	if epochs := send.labelled("freshness_epoch_info", "The epoch of the log of changes that this node reads.", "epoch"); s.Epoch != "" {
		epochs(1, s.Epoch)
	}
	send.value("freshness_entries_total", "Entries of the log of changes applied.", s.Entries)
	resyncs := send.labelled("freshness_resyncs_total", "Times this node discarded what it knew of changes and began again, by cause.", "cause")
	for _, cause := range changefeed.ResetCauses {
		resyncs(s.Resets[cause], string(cause))
	}
}

func sendFollower(send scrape, s follower.Stats) {
	send.value("freshness_follower", "1 on the node that holds the replication slot.", s.Following)
	send.value("freshness_follower_lag_bytes", "WAL of the primary not yet decoded at the last heartbeat, on the follower.", s.Lag)
	send.value("freshness_follower_lag_seconds", "How long the last heartbeat waited until the WAL before it was decoded, on the follower.", s.LagTime)
	send.value("freshness_follower_heartbeat_age_seconds", "Time since the follower published a heartbeat.", s.HeartbeatAge)
	send.value("freshness_retained_wal_bytes", "WAL that the primary keeps for the replication slot, as this node last saw it.", s.Retained)
	send.value("freshness_commits_total", "Transactions published by this node.", s.Commits)
	send.value("freshness_terms_total", "Times this node became the follower.", s.Terms)
}

func sendLimiter(send scrape, s limiter.Stats) {
	decisions := send.labelled("limiter_decisions_total",
		"Requests admitted or refused, by what decided; those refused by the quota of their workspace are apart.", "decision", "source")
	for i := range s.Allowed {
		source := limiter.Source(i).String()
		decisions(s.Allowed[i], "allowed", source)
		decisions(s.Refused[i], "refused", source)
	}
	used := send.labelled("limiter_quota_used_ratio",
		"Used part of the quotas that are used the most in their present period, as this node last knew.", "workspace")
	for _, q := range s.Quotas {
		used(q.Part, q.Workspace)
	}
	send.value("limiter_redis_trips_total", "Round trips to Redis for buckets and quotas.", s.RedisTrips)
	send.value("limiter_redis_calls_total", "Calls of the script in the round trips to Redis; one trip carries several.", s.RedisCalls)
	send.value("limiter_redis_errors_total", "Round trips to Redis for buckets and quotas that failed.", s.RedisErrors)
	send.value("limiter_redis_timeouts_total", "Round trips to Redis for buckets and quotas that took longer than a request waits.", s.RedisTimeouts)
	send.value("limiter_leased_tokens_total", "Tokens leased from Redis.", s.TokensLeased)
	send.value("limiter_leased_tokens", "Leased tokens that this node may still spend.", s.LeasedHeld)
	send.value("limiter_nodes", "Nodes of the fleet that have sent a heartbeat to Redis within a minute, as last counted; 0 without Redis.", s.Nodes)
	send.value("limiter_undebited_buckets",
		"Buckets and quotas from which this node spent tokens while Redis was away, and which Redis has not debited yet.", s.Owing)
	send.value("limiter_degraded_seconds_total", "Time for which this node decided without Redis.", s.Degraded)
	send.value("limiter_breaker_open", "1 while this node decides without Redis, because it failed several times in a row.", s.BreakerOpen)
}

func sendOrigin(send scrape, s origin.Stats) {
	send.by("outcome", "origin_fetches_total", "Pages read from the primary, by outcome; overloaded ones were refused before they reached it.",
		series{"ok": s.Fetches["ok"], "failed": s.Fetches["failed"], "timeout": s.Fetches["timeout"], "overloaded": s.Fetches["overloaded"]})
	sum, open := map[string]uint64{}, 0
	for _, standby := range s.Standbys {
		for outcome, n := range standby.Fetches {
			sum[outcome] += n
		}
		if standby.BreakerOpen {
			open++
		}
	}
	send.by("outcome", "origin_standby_fetches_total", "Pages requested from standbys, by outcome; all but ok are read from the primary instead.",
		series{"ok": sum["ok"], "lagging": sum["lagging"], "wrong-server": sum["wrong-server"], "failed": sum["failed"] + sum["timeout"] + sum["overloaded"]})
	send.value("origin_standby_breakers_open", "Standbys that are not queried, because they failed several times in a row.", open)
	send.value("origin_queries_running", "Page queries in flight.", s.Running)
	send.value("origin_queries_queued", "Page queries that wait for their turn.", s.Queued)
	send.value("origin_breaker_open", "1 while pages are not read from Postgres, because it failed several times in a row.", s.BreakerOpen)
	send.value("origin_connections", "Connections to Postgres for pages.", s.Pool.TotalConns())
	send.value("origin_connections_idle", "Connections to Postgres for pages that are idle.", s.Pool.IdleConns())
	send.value("origin_connections_max", "Connections to Postgres for pages that may be open (--database-connections).", s.Pool.MaxConns())
	send.value("origin_connections_acquired_total", "Times a connection was taken from the pool.", s.Pool.AcquireCount())
	send.value("origin_connections_wait_seconds_total", "Time spent waiting for a connection from the pool.", s.Pool.AcquireDuration())
}

func sendKeys(send scrape, s apikey.Stats) {
	send.by("outcome", "key_lookups_total", "Well-formed keys looked up by requests: known to this node, loaded from Postgres, unknown, known from "+
		"before while Postgres fails (within-grace), or failed.",
		series{"known": s.Hits, "loaded": s.Loaded, "unknown": s.Unknown, "within-grace": s.WithinGrace, "failed": s.Failures})
	send.value("key_queries_total", "Queries to Postgres for keys, refreshes included.", s.Queries)
	send.value("keys_known", "Keys that this node knows.", s.Known)
}

func sendUsage(send scrape, s usage.Stats) {
	unwritten := time.Duration(0)
	if !s.Since.IsZero() {
		unwritten = time.Since(s.Since)
	}
	send.value("usage_unwritten_seconds", "Age of the oldest counts of what keys were used for that are not in Postgres yet; 0 = all are.", unwritten)
	send.value("usage_lost_requests_total", "Requests that usage does not count: Postgres could not be written to, and too many keys were waiting.", s.Lost)
}
