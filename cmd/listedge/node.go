package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"listedge/cache"
	"listedge/edge"
	"listedge/edge/admin"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/tracing"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
	"listedge/origin/apikey"
	"listedge/origin/follower"
	"listedge/origin/postgres"
	"listedge/origin/usage"
)

// node is one edge node, wired and listening.
type node struct {
	logger   *slog.Logger
	drain    time.Duration
	redis    redisClients
	database *postgres.Database
	cache    *cache.Cache
	limiter  *limiter.Limiter
	usage    *usage.Recorder
	changes  *changefeed.Redis // the log of changes; nil = they do not go through Redis
	followed *changefeed.Followed
	feed     *changefeed.Subscriber // nil = changes are not followed
	server   *edge.Server
	tracer   *tracing.Tracer    // nil = requests are not traced
	follower *follower.Follower // nil = changes are not followed
	health   *admin.Health
	history  *admin.History
	metrics  *metrics.Registry
	started  time.Time
	admin    *http.Server

	maxConnections int // of the public listener

	conditions  []condition
	redisOutage redisOutage
	probes      []func(context.Context) // each tests whether a failed server is back
	evicts      atomic.Bool             // Redis may evict what must not be lost
	id          string
	claim       *changefeed.Claim // of the name of the fleet; only checkFleet uses it

	timelineKnown   chan struct{}         // closed when answers of the database can be judged (mayJudge)
	identityFailure atomic.Pointer[error] // why the last query for the identity of the database failed; nil = it did not, or none was needed

	public, private net.Listener
}

const (
	// fillSlack is how much longer than its query a fill may take: for the fair queue, for a
	// connection, and until the error of a statement_timeout arrives.
	fillSlack = time.Second
	// stopTimeout bounds shutting down after the drain.
	stopTimeout = 10 * time.Second
)

func prefixes(networks []network) (all []netip.Prefix) {
	for _, n := range networks {
		all = append(all, n.Prefix)
	}
	return all
}

// listenBoth opens the listeners of a node, before anything else is started: a port
// in use is the most frequent mistake.
func listenBoth(f ListenFlags) (public, private net.Listener, err error) {
	if public, err = net.Listen("tcp", f.Listen); err != nil {
		return nil, nil, listenError("--listen", err)
	}
	if private, err = net.Listen("tcp", f.AdminListen); err != nil {
		public.Close()
		return nil, nil, listenError("--admin-listen", err)
	}
	return public, private, nil
}

// listenError names the flag whose address failed. A malformed address is wrong usage; an
// address that is in use is not.
func listenError(flag string, err error) error {
	err = fmt.Errorf("%s: %w", flag, err)
	if malformed := (*net.AddrError)(nil); errors.As(err, &malformed) {
		return usageError{err}
	}
	return err
}

// databaseURLs are two URLs of one database: pages may be read through a connection pooler,
// and changes are followed without one.
type databaseURLs struct{ pages, changes string }

// newNode wires a node. Neither Postgres nor Redis has to run yet. settings are
// what /settings shows.
func newNode(ctx context.Context, f NodeFlags, database databaseURLs, settings map[string]any, log *recentLog, public, private net.Listener) (n *node, err error) {
	logger := slog.New(log)
	n = &node{logger: logger, drain: f.Drain, public: public, private: private, followed: &changefeed.Followed{Region: f.Region}, id: f.NodeID, timelineKnown: make(chan struct{}), started: time.Now()}
	defer func(begun *node) { // not n, which a failing return sets to nil
		if err != nil {
			err = errors.Join(err, begun.closeLayers(ctx, true))
		}
	}(n)
	if n.redis, err = openRedis(f.RedisURL); err != nil {
		return nil, err
	}
	n.claim = changefeed.NewClaim(n.redis.log, n.followed)
	n.database, err = postgres.Open(ctx, postgres.Options{URL: database.pages, ReplicationURL: database.changes, Replicas: f.ReplicaURL, Connections: f.DatabaseConnections, QueryTimeout: f.QueryTimeout, TimelineKnown: n.timelineKnown})
	if err != nil {
		return nil, usageError{err}
	}
	clock := boottime.New()
	n.cache, err = cache.New(cache.Options{
		Memory: int64(f.CacheMemory), Redis: n.redis.pages, Followed: n.followed, Bound: f.FreshnessBound,
		TTL: f.CacheTTL, MaxStale: f.MaxStale, FillTimeout: f.QueryTimeout + fillSlack, Clock: clock,
	})
	if err != nil {
		return nil, err
	}
	n.database.Follow(func() postgres.Followed {
		server, run := n.cache.Primary()
		identity, _ := n.followed.Identity()
		return postgres.Followed{Run: run, Timeline: cmp.Or(n.followed.Newest(), server), Database: identity.Name}
	})
	if f.FreshnessBound > 0 && n.redis.log != nil {
		n.changes = changefeed.NewRedis(n.redis.log, n.followed)
	} else {
		close(n.timelineKnown) // no fleet follows another timeline
	}
	n.limiter = limiter.New(limiter.Options{Redis: n.redis.limiter, Prefix: n.followed.Prefix(), NodeID: n.name(), FailureMode: f.LimiterFailureMode, Clock: clock})
	pages, keys := origin.New(n.database), apikey.NewStore(n.database)
	if n.tracer, err = openTracer(ctx, logger); err != nil {
		return nil, err
	}
	n.maxConnections = limitConnections(f, descriptorLimit(), memoryLimit(), logger)
	n.usage = usage.Start(usage.NewStore(n.database), logger)
	registry := metrics.New(version, builtFrom())
	n.metrics = registry
	n.server = edge.New(edge.Options{
		Cache: n.cache, Limiter: n.limiter, Origin: pages, Lookup: keys.Lookup, Grace: f.KeyGrace, Usage: n.usage, Clock: clock,
		Metrics: registry.Edge, Logger: logger, Proxies: prefixes(f.TrustedProxies), MaxConnections: n.maxConnections, NoDocs: f.NoDocs,
		AccessLog: f.AccessLog, ServerTiming: f.ServerTiming, Tracer: n.tracer,
	})
	if f.FreshnessBound > 0 {
		n.followChanges(f, database.changes)
	}
	n.openAdmin(pages, keys, registry, settings, log)
	return n, nil
}

// openAdmin makes what operators see of the node: health, metrics, settings, and the
// conditions that it logs.
func (n *node) openAdmin(pages *origin.Origin, keys *apikey.Store, registry *metrics.Registry, settings map[string]any, log *recentLog) {
	n.conditions = n.conditionsOf(pages, keys)
	n.probes = []func(context.Context){n.cache.Probe, pages.Probe, keys.Probe}
	sources := metrics.Sources{
		Cache: n.cache.Stats, Limiter: n.limiter.Stats, Origin: pages.Stats, Keys: n.server.KeyStats,
		Usage: n.usage.Stats, KeyBreakerOpen: keys.BreakerOpen, RedisMayEvict: n.evicts.Load,
	}
	if n.redis.pages != nil {
		n.conditions = append(n.conditions, n.identityCondition())
	}
	if n.follower != nil {
		n.conditions = append(n.conditions, n.timelineCondition())
		sources.Follower, sources.Feed = n.follower.Stats, n.feed.Stats
	}
	if n.identifies() || n.follower != nil {
		settings["database"] = n.followed
	}
	settings["max-connections"] = n.maxConnections
	n.health = admin.NewHealth(func() string { return n.cache.Mode().String() },
		map[string]func() string{"trusted-proxies": n.server.UntrustedProxy}, n.checksOf(pages)...)
	n.history = admin.NewHistory(n.reading)
	state := admin.StateSources{Health: n.health, History: n.history, Self: n.state,
		Keys: func(ctx context.Context) []admin.KeyState { return n.busiestKeys(ctx, keys) }}
	if n.redis.pages != nil {
		state.Fleet = n.fleet
	}
	sources.Dependencies = n.health.Metrics
	sources.RedisCalls = n.redis.calls
	sources.CertificateExpiry = func() time.Time { return certificateExpiry(n.public) }
	sources.Ready = n.health.Ready
	registry.Collect(sources)
	n.admin = admin.NewServer(admin.Options{
		Names: adminNames(settings), Health: n.health, Metrics: registry.Handler(), Log: log, Records: n.server.Records, Settings: settings, State: state,
	}, slog.NewLogLogger(log, slog.LevelWarn))
}

// adminNames are the names that the admin listener answers to: the host of
// --admin-listen, and the machine's.
func adminNames(settings map[string]any) (names []string) {
	listen, _ := settings["admin-listen"].(string)
	if host, _, err := net.SplitHostPort(listen); err == nil && host != "" {
		names = append(names, host)
	}
	if machine, err := os.Hostname(); err == nil {
		names = append(names, machine)
	}
	return names
}

// followChanges makes the follower, which writes the log of changes while this node
// holds the slot, and the subscriber, which reads it for pages and keys.
func (n *node) followChanges(f NodeFlags, databaseURL string) {
	log := changefeed.Log(changefeed.NewLocal())
	if n.changes != nil {
		log = n.changes
	}
	n.feed = changefeed.NewSubscriber(log, n.followed, n.logger, n.cache, n.server.Keys())
	n.follower = follower.New(follower.Options{DatabaseURL: databaseURL, Region: f.Region, Log: log, Followed: n.followed,
		LogKept: f.CacheTTL + f.MaxStale + time.Minute, Silence: n.feed.Silence, Logger: n.logger})
}

// serve answers until ctx ends, and then stops in order: not ready, draining,
// server shut down, layers closed.
func (n *node) serve(ctx context.Context) error {
	failed := make(chan error, 2)
	go func() { failed <- n.server.Serve(n.public) }()
	go func() { failed <- n.admin.Serve(n.private) }()
	running, stop := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() { n.health.Run(running, n.logReadiness) })
	background.Go(func() { n.watch(running) })
	background.Go(func() { n.history.Run(running) })
	for _, probe := range n.probes {
		background.Go(func() { repeat(running, probe) })
	}
	if n.follower != nil {
		background.Go(func() { n.follower.Run(running) })
		background.Go(func() { n.feed.Run(running) })
	}
	if n.redis.pages != nil {
		background.Go(func() { n.identify(running) })
		background.Go(func() { n.enroll(running) })
	}
	n.logger.Info("listening", "version", version, "public", n.public.Addr().String(), "admin", n.private.Addr().String(), "maxConnections", n.maxConnections)
	var err error
	select {
	case <-ctx.Done():
		n.health.Drain()
		n.server.Drain()
		n.logger.Info("draining", "for", n.drain.String())
		time.Sleep(n.drain)
	case err = <-failed:
	}
	stop()
	background.Wait()
	n.leave()
	err = errors.Join(err, n.close())
	n.logger.Info("stopped")
	return err
}

func (n *node) logReadiness(r admin.Readiness) {
	if r.Ready {
		n.logger.Info("ready")
	} else {
		n.logger.Warn("not ready", "checks", r.Checks)
	}
}

// leave has the follower leave if no other node of the fleet is in the roster, nor one that
// does not know its fleet yet. This node has removed itself, so the last of several that end
// at once sees nobody.
func (n *node) leave() {
	if n.follower == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if n.redis.pages != nil {
		nodes, err := readRoster(ctx, n.redis.log, n.followed.Prefix())
		if err != nil || slices.ContainsFunc(nodes, func(e rosterEntry) bool { return e.Fleet == "" || e.Fleet == n.followed.Digest() }) {
			return
		}
	}
	n.follower.Leave(ctx)
}

func (n *node) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := n.server.Shutdown(ctx)
	return errors.Join(err, n.closeLayers(ctx, err == nil), n.admin.Close())
}

// closeLayers closes the layers below the server that were opened. The cache is closed only
// if all requests have ended, because requests read it.
func (n *node) closeLayers(ctx context.Context, requestsEnded bool) (err error) {
	if n.cache != nil && requestsEnded {
		err = n.cache.Close(ctx)
	}
	if err := n.usage.Close(ctx); err != nil {
		n.logger.Warn("the latest usage of keys is lost", "error", err)
	}
	if n.limiter != nil {
		err = errors.Join(err, n.limiter.Close(ctx))
	}
	n.closeTracer()
	n.redis.close()
	if n.database != nil {
		err = errors.Join(err, n.database.Close(ctx))
	}
	return err
}
