package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/limiter"
	"listedge/origin"
	"listedge/origin/apikey"
	"listedge/origin/follower"
)

// Sources give snapshots of the layers; each is called once per scrape.
type Sources struct {
	Cache    func() cache.Stats
	Limiter  func() limiter.Stats
	Origin   func() origin.Stats
	Keyring  func() apikey.Stats
	KeysAway func() bool // look-ups of keys are refused by their breaker
	Evicts   func() bool // Redis may evict buckets and the log of changes
	Ready    func() bool
	Follower func() follower.Stats
	Feed     func() changefeed.Stats
}

// series is one number of a layer, or a histogram: its name, its help and how
// it is read.
type series[S any] struct {
	desc *prometheus.Desc
	make func(desc *prometheus.Desc, snapshot S) prometheus.Metric // nil = none at the moment
}

// layer collects all series of one layer from one snapshot.
type layer[S any] struct {
	snapshot func() S
	series   []series[S]
}

func (l *layer[S]) Describe(out chan<- *prometheus.Desc) {
	for _, s := range l.series {
		out <- s.desc
	}
}

func (l *layer[S]) Collect(out chan<- prometheus.Metric) {
	snapshot := l.snapshot()
	for _, s := range l.series {
		if m := s.make(s.desc, snapshot); m != nil {
			out <- m
		}
	}
}

func (l *layer[S]) counter(name, help string, read func(S) uint64) {
	l.add(prometheus.CounterValue, name, help, nil, nil, func(s S) float64 { return float64(read(s)) })
}

func (l *layer[S]) gauge(name, help string, read func(S) float64) {
	l.add(prometheus.GaugeValue, name, help, nil, nil, read)
}

func (l *layer[S]) labelled(name, help string, labels, values []string, read func(S) uint64) {
	l.add(prometheus.CounterValue, name, help, labels, values, func(s S) float64 { return float64(read(s)) })
}

func (l *layer[S]) add(kind prometheus.ValueType, name, help string, labels, values []string, read func(S) float64) {
	l.addMetric(name, help, labels, func(desc *prometheus.Desc, snapshot S) prometheus.Metric {
		return prometheus.MustNewConstMetric(desc, kind, read(snapshot), values...)
	})
}

func (l *layer[S]) histogram(name, help string, read func(S) cache.Histogram) {
	l.addMetric(name, help, nil, func(desc *prometheus.Desc, snapshot S) prometheus.Metric {
		h := read(snapshot)
		return prometheus.MustNewConstHistogram(desc, h.Count, h.Sum, h.Buckets)
	})
}

// info is a 1 whose label tells; none while there is nothing to tell.
func (l *layer[S]) info(name, help, label string, read func(S) string) {
	l.addMetric(name, help, []string{label}, func(desc *prometheus.Desc, snapshot S) prometheus.Metric {
		if read(snapshot) == "" {
			return nil
		}
		return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, 1, read(snapshot))
	})
}

func (l *layer[S]) addMetric(name, help string, labels []string, make func(*prometheus.Desc, S) prometheus.Metric) {
	l.series = append(l.series, series[S]{prometheus.NewDesc("listedge_"+name, help, labels, nil), make})
}

// Collect registers the layers.
func (r *Registry) Collect(from Sources) {
	r.registry.MustRegister(cacheLayer(from), followerLayer(from), feedLayer(from), limiterLayer(from), originLayer(from), keyringLayer(from),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "listedge_redis_may_evict", Help: "1 while Redis' maxmemory-policy lets it evict buckets and the log of changes, as last seen."},
			func() float64 { return oneIf(from.Evicts()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "listedge_ready", Help: "1 while /readyz answers 200."},
			func() float64 { return oneIf(from.Ready()) }))
}

func cacheLayer(from Sources) prometheus.Collector {
	l := &layer[cache.Stats]{snapshot: from.Cache}
	l.counter("cache_fills_total", "Pages asked of the origin.", func(s cache.Stats) uint64 { return s.Fills })
	l.counter("cache_fill_errors_total", "Fills that failed.", func(s cache.Stats) uint64 { return s.FillErrors })
	l.counter("cache_evictions_total", "Pages evicted from memory for others, or too large to be kept.", func(s cache.Stats) uint64 { return s.Evicted })
	l.gauge("cache_memory_bytes", "Bytes that pages occupy in memory.", func(s cache.Stats) float64 { return float64(s.MemoryBytes) })
	l.gauge("cache_memory_budget_bytes", "Bytes of memory the cache may use (--cache-memory).", func(s cache.Stats) float64 { return float64(s.MemoryBudget) })
	l.counter("cache_redis_calls_total", "Calls to Redis for pages.", func(s cache.Stats) uint64 { return s.RedisCalls })
	l.counter("cache_redis_failures_total", "Calls to Redis for pages that failed, were late, or were not made because the breaker, or no connection, is open.", func(s cache.Stats) uint64 { return s.RedisFailures })
	l.counter("cache_redis_corrupt_total", "Values in Redis that were not the page they should have been.", func(s cache.Stats) uint64 { return s.RedisCorrupt })
	l.counter("cache_redis_dropped_total", "Pages not stored in Redis, because too many were on their way or they are too large.", func(s cache.Stats) uint64 { return s.RedisDropped })
	for mode := range cache.ModeFollowed + 1 {
		l.add(prometheus.GaugeValue, "freshness_mode", "1 for what pages' freshness rests on: followed changes, nothing for the moment (untrusted), or their age (ttl).",
			[]string{"mode"}, []string{mode.String()}, func(s cache.Stats) float64 { return oneIf(s.Mode == mode) })
	}
	l.gauge("freshness_bound_seconds", "How old a commit may be that a page served as fresh omits (--freshness-bound); 0 where changes are not followed.", func(s cache.Stats) float64 { return s.Bound.Seconds() })
	l.add(prometheus.GaugeValue, "freshness_proof_age_seconds", "Age of the last proof that all changes have been seen; pages are fresh while it is below --freshness-bound.", nil, nil,
		func(s cache.Stats) float64 { return s.ProofAge.Seconds() })
	for _, why := range cache.Refusals() {
		l.labelled("freshness_refused_pages_total", "Pages read and not kept, by why: untrusted when the fill began, late, resynced meanwhile, unseen (the primary's snapshot lacks a known change), behind (a replica does), foreign (another server, or its replica).",
			[]string{"why"}, []string{why}, func(s cache.Stats) uint64 { return s.Refused[why] })
	}
	l.counter("cache_refreshes_total", "Pages read ahead of their readers, because a change had just made them stale.", func(s cache.Stats) uint64 { return s.Refreshes })
	l.counter("cache_refreshes_dropped_total", "Pages left to their readers because too many were to be read ahead.", func(s cache.Stats) uint64 { return s.RefreshesDropped })
	l.counter("cache_next_pages_total", "Pages read because a walk was about to ask for them.", func(s cache.Stats) uint64 { return s.NextPages })
	l.counter("cache_next_pages_dropped_total", "Pages left to walks because too many were to be read ahead.", func(s cache.Stats) uint64 { return s.NextPagesDropped })
	l.histogram("freshness_commit_to_applied_seconds", "Time from a commit, by the primary's clock, to its being known to this node, by its own.", func(s cache.Stats) cache.Histogram { return s.Lag })
	l.gauge("freshness_pairs", "Parts of collections whose changes are remembered.", func(s cache.Stats) float64 { return float64(s.Pairs) })
	l.gauge("cache_redis_breaker_open", "1 while pages are not asked of Redis.", func(s cache.Stats) float64 { return oneIf(s.RedisBreakerOpen) })
	return l
}

func feedLayer(from Sources) prometheus.Collector {
	l := &layer[changefeed.Stats]{snapshot: from.Feed}
	l.info("freshness_epoch_info", "The epoch of the log of changes that this node follows.", "epoch", func(s changefeed.Stats) string { return s.Epoch })
	l.counter("freshness_entries_total", "Entries of the log of changes applied.", func(s changefeed.Stats) uint64 { return s.Entries })
	for _, cause := range changefeed.ResetCauses() {
		l.labelled("freshness_resyncs_total", "Times this node began anew with the log of changes, by cause.", []string{"cause"}, []string{cause},
			func(s changefeed.Stats) uint64 { return s.Resets[cause] })
	}
	return l
}

func followerLayer(from Sources) prometheus.Collector {
	l := &layer[follower.Stats]{snapshot: from.Follower}
	l.gauge("freshness_follower", "1 on the node that holds the replication slot.", func(s follower.Stats) float64 { return oneIf(s.Following) })
	l.gauge("freshness_follower_lag_bytes", "WAL of the primary not yet decoded at the last heartbeat, on the node that follows.", func(s follower.Stats) float64 { return float64(s.Lag) })
	l.gauge("freshness_follower_lag_seconds", "How long the last heartbeat had to wait until the primary's WAL was decoded so far, on the node that follows.", func(s follower.Stats) float64 { return s.LagTime.Seconds() })
	l.gauge("freshness_follower_heartbeat_age_seconds", "Time since the node that follows published a heartbeat.", func(s follower.Stats) float64 { return s.HeartbeatAge.Seconds() })
	l.gauge("freshness_retained_wal_bytes", "WAL that the replication slot keeps on the primary, as this node last saw it.", func(s follower.Stats) float64 { return float64(s.Retained) })
	l.counter("freshness_commits_total", "Transactions published by this node.", func(s follower.Stats) uint64 { return s.Commits })
	l.counter("freshness_terms_total", "Times this node began to follow.", func(s follower.Stats) uint64 { return s.Terms })
	return l
}

func limiterLayer(from Sources) prometheus.Collector {
	l := &layer[limiter.Stats]{snapshot: from.Limiter}
	decisions := func(decision string, of func(limiter.Stats) limiter.BySource) {
		for source, count := range map[string]func(limiter.BySource) uint64{
			"unlimited":      func(b limiter.BySource) uint64 { return b.Unlimited },
			"blocked":        func(b limiter.BySource) uint64 { return b.Blocked },
			"memory":         func(b limiter.BySource) uint64 { return b.Memory },
			"redis":          func(b limiter.BySource) uint64 { return b.Redis },
			"lease":          func(b limiter.BySource) uint64 { return b.Lease },
			"local_fallback": func(b limiter.BySource) uint64 { return b.LocalFallback },
		} {
			l.labelled("limiter_decisions_total", "Requests admitted or refused, by who decided.", []string{"decision", "source"},
				[]string{decision, source}, func(s limiter.Stats) uint64 { return count(of(s)) })
		}
	}
	decisions("allowed", func(s limiter.Stats) limiter.BySource { return s.Allowed })
	decisions("refused", func(s limiter.Stats) limiter.BySource { return s.Refused })
	l.counter("limiter_redis_trips_total", "Round trips to Redis for buckets.", func(s limiter.Stats) uint64 { return s.RedisTrips })
	l.counter("limiter_redis_calls_total", "Script calls in these trips.", func(s limiter.Stats) uint64 { return s.RedisCalls })
	l.counter("limiter_redis_errors_total", "Trips that failed.", func(s limiter.Stats) uint64 { return s.RedisErrors })
	l.counter("limiter_redis_timeouts_total", "Trips that took longer than a request waits.", func(s limiter.Stats) uint64 { return s.RedisTimeouts })
	l.counter("limiter_leased_tokens_total", "Tokens leased from Redis, to be spent without asking it.", func(s limiter.Stats) uint64 { return s.TokensLeased })
	l.counter("limiter_lease_prefetches_total", "Leases asked for before the last one was spent.", func(s limiter.Stats) uint64 { return s.Prefetches })
	l.counter("limiter_lease_settles_total", "Calls that gave unused leased tokens back.", func(s limiter.Stats) uint64 { return s.Settles })
	l.gauge("limiter_leases", "Buckets of which this node holds leased tokens.", func(s limiter.Stats) float64 { return float64(s.Leases) })
	l.gauge("limiter_leased_tokens", "Leased tokens that this node may still spend.", func(s limiter.Stats) float64 { return float64(s.LeasedHeld) })
	l.counter("limiter_off_ledger_admissions_total", "Requests admitted while Redis could not be asked, and debited later.", func(s limiter.Stats) uint64 { return s.OffLedger })
	l.gauge("limiter_nodes", "Live nodes of the fleet, by their heartbeats in Redis; 0 without.", func(s limiter.Stats) float64 { return float64(s.Nodes) })
	l.counter("limiter_tokens_returned_total", "Tokens given back by requests that cost nothing (304).", func(s limiter.Stats) uint64 { return s.Returned })
	l.counter("limiter_returns_dropped_total", "Tokens that could not be given back.", func(s limiter.Stats) uint64 { return s.ReturnsDropped })
	l.counter("limiter_debt_settled_total", "Tokens spent while Redis was away and debited since.", func(s limiter.Stats) uint64 { return s.DebtSettled })
	l.gauge("limiter_owing_buckets", "Buckets with tokens spent here that Redis does not know of.", func(s limiter.Stats) float64 { return float64(s.Owing) })
	l.gauge("limiter_local_buckets", "Buckets in the in-process store (single node).", func(s limiter.Stats) float64 { return float64(s.Buckets) })
	l.add(prometheus.CounterValue, "limiter_degraded_seconds_total", "Time for which this node decided without Redis.", nil, nil,
		func(s limiter.Stats) float64 { return s.Degraded.Seconds() })
	l.gauge("limiter_breaker_open", "1 while Redis is not asked for buckets.", func(s limiter.Stats) float64 { return oneIf(s.Breaker != "" && s.Breaker != "closed") })
	return l
}

func originLayer(from Sources) prometheus.Collector {
	l := &layer[origin.Stats]{snapshot: from.Origin}
	for outcome, count := range map[string]func(origin.Stats) uint64{
		"ok":         func(s origin.Stats) uint64 { return s.Fetched },
		"failed":     func(s origin.Stats) uint64 { return s.Failed },
		"timeout":    func(s origin.Stats) uint64 { return s.TimedOut },
		"overloaded": func(s origin.Stats) uint64 { return s.Overloaded },
	} {
		l.labelled("origin_fetches_total", "Pages asked of the primary, by outcome; overloaded ones never reached it.", []string{"outcome"}, []string{outcome}, count)
	}
	for outcome, count := range map[string]func(origin.StandbyStats) uint64{
		"ok":      func(s origin.StandbyStats) uint64 { return s.Fetched },
		"behind":  func(s origin.StandbyStats) uint64 { return s.Behind },
		"foreign": func(s origin.StandbyStats) uint64 { return s.Foreign },
		"failed":  func(s origin.StandbyStats) uint64 { return s.Failed },
	} {
		l.labelled("origin_replica_fetches_total", "Pages asked of replicas, by outcome; all but ok are asked of the primary instead.", []string{"outcome"}, []string{outcome},
			func(s origin.Stats) (sum uint64) {
				for _, standby := range s.Standbys {
					sum += count(standby)
				}
				return sum
			})
	}
	l.gauge("origin_replica_breakers_open", "Replicas that are not asked because they kept failing.", func(s origin.Stats) (sum float64) {
		for _, standby := range s.Standbys {
			sum += oneIf(standby.BreakerOpen)
		}
		return sum
	})
	l.gauge("origin_queries_running", "Page queries under way.", func(s origin.Stats) float64 { return float64(s.Running) })
	l.gauge("origin_queries_queued", "Page queries waiting for their turn.", func(s origin.Stats) float64 { return float64(s.Queued) })
	l.gauge("origin_breaker_open", "1 while Postgres is not asked for pages.", func(s origin.Stats) float64 { return oneIf(s.BreakerOpen) })
	l.gauge("origin_connections", "Connections to Postgres for pages.", func(s origin.Stats) float64 { return float64(s.Pool.Total) })
	l.gauge("origin_connections_idle", "Those of them that are idle.", func(s origin.Stats) float64 { return float64(s.Pool.Idle) })
	l.gauge("origin_connections_max", "How many there may be (--database-connections).", func(s origin.Stats) float64 { return float64(s.Pool.Max) })
	l.counter("origin_connections_acquired_total", "Times a connection was taken from the pool.", func(s origin.Stats) uint64 { return s.Pool.Acquired })
	l.add(prometheus.CounterValue, "origin_connections_wait_seconds_total", "Time spent taking connections from the pool.", nil, nil,
		func(s origin.Stats) float64 { return s.Pool.Waited.Seconds() })
	return l
}

func keyringLayer(from Sources) prometheus.Collector {
	l := &layer[apikey.Stats]{snapshot: from.Keyring}
	for outcome, count := range map[string]func(apikey.Stats) uint64{
		"known":   func(s apikey.Stats) uint64 { return s.Hits },
		"loaded":  func(s apikey.Stats) uint64 { return s.Loaded },
		"unknown": func(s apikey.Stats) uint64 { return s.Unknown },
		"graced":  func(s apikey.Stats) uint64 { return s.Graced },
		"failed":  func(s apikey.Stats) uint64 { return s.Failures },
	} {
		l.labelled("key_lookups_total", "Well-formed keys looked up by requests: known to this node, loaded from Postgres, unknown, known from before while Postgres is away (graced), or not to be checked.",
			[]string{"outcome"}, []string{outcome}, count)
	}
	l.counter("key_queries_total", "Queries to Postgres for keys, refreshes included.", func(s apikey.Stats) uint64 { return s.Queries })
	l.gauge("keys_known", "Keys this node knows.", func(s apikey.Stats) float64 { return float64(s.Known) })
	l.gauge("key_breaker_open", "1 while Postgres is not asked for keys.", func(apikey.Stats) float64 { return oneIf(from.KeysAway()) })
	return l
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
