// Package node is one edge node: it wires cache, limiter, origin and edge, starts and stops
// them, and checks what they depend on.
//
//	flags.go, listen.go, redis.go ──► node.go: wires, starts, stops
//	checks.go ──► /readyz, the log, the status page, the doctor
//	roster.go ──► the status pages of the other nodes
package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"listedge/cache"
	"listedge/edge"
	"listedge/edge/admin"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/internal/tracing"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
	"listedge/origin/apikey"
	"listedge/origin/follower"
	"listedge/origin/postgres"
	"listedge/origin/usage"
)

// Node is one edge node, wired and listening.
type Node struct {
	options  Options
	logger   *slog.Logger
	redis    redisClients
	database *postgres.Database
	pages    *origin.Origin
	keys     *apikey.Store
	Cache    *cache.Cache
	limiter  *limiter.Limiter
	usage    *usage.Recorder
	changes  *changefeed.Redis // the log of changes; nil = they do not go through Redis
	log      changefeed.Log    // the same, or one in this process; nil = changes are not followed
	followed *fleet.Followed
	finder   *fleet.Finder          // only a node with Redis runs it
	feed     *changefeed.Subscriber // nil = changes are not followed
	server   *edge.Server
	tracer   *tracing.Tracer    // nil = requests are not traced
	follower *follower.Follower // nil = changes are not followed
	health   *admin.Health
	metrics  *metrics.Registry
	started  time.Time
	admin    *http.Server

	maxConnections int          // of the public listener
	certificate    *certificate // of the public listener; nil = plain HTTP

	rests  atomic.Bool             // no requests come: see restAfter
	probes []func(context.Context) // each tries a server that has failed

	roster *roster                              // nil = there is no Redis
	claim  func(context.Context) (other string) // the database that the fleet follows and this node does not; only checkFleet uses it

	wrongSetting chan error // has a setting with which the node will never start
}

const (
	// watchInterval is how often a node tries failed servers, and whether changes are followed.
	watchInterval = 200 * time.Millisecond
	// followAgain is how long the log of changes must be silent before a node that cannot
	// follow changes itself stops waiting for another node to do so.
	followAgain = 2 * time.Second
	// restAfter is how long a node has had no request when it rests: from then on it reads the log restPause apart, or as far as the
	// freshness bound allows, and keeps two connections to Postgres: it verifies no pages and no rights.
	restAfter = time.Minute
	restPause = 160 * time.Millisecond
	// proofAge is how old proofs become, at most, while a node does not rest and nothing is slow.
	proofAge = 150 * time.Millisecond
	// checkpointEvery is how often the node that follows stores a checkpoint: several times while the log, which is kept in part, is
	// written anew by the fastest writers.
	checkpointEvery = 5 * time.Second
	// fillSlack is how much longer than its query a fill may take: for the fair queue, for a
	// connection, and until the error of a statement_timeout arrives.
	fillSlack = time.Second
	// StopTimeout bounds shutting down after the drain.
	StopTimeout = 10 * time.Second
	// traceCloseTimeout bounds sending the last traces, so that a hung collector does not
	// delay the end of the process.
	traceCloseTimeout = 2 * time.Second
)

// Options are what a node needs beside its flags.
type Options struct {
	Flags
	TLSFlags
	DatabaseURL       string // for pages, maybe through a connection pooler
	ReplicationURL    string // of the same database without a pooler, to follow changes
	Lists             *list.Set
	Settings          map[string]any // what /settings shows
	Version, Revision string         // of the program
	Traces            bool           // OpenTelemetry's environment variables name a collector
	NotifySocket      string         // where systemd waits for READY=1; empty = it does not
	Log               *Log
	Public, Private   net.Listener // the node closes them
	Dial              dialer       // opens connections to Postgres, but not the follower's, and to Redis; nil = by TCP
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// newNode makes a node that has nothing yet but what calls Redis, which need not run.
func newNode(o Options) (*Node, error) {
	var known chan struct{} // nil = there is no log in Redis, so no fleet that follows another timeline
	if o.FreshnessBound > 0 && o.RedisURL != "" {
		known = make(chan struct{})
	}
	n := &Node{options: o, followed: &fleet.Followed{Region: o.Region, Known: known}, wrongSetting: make(chan error, 1),
		started: time.Now(), metrics: metrics.New(o.Version, o.Revision)}
	clients, err := openRedis(o.RedisURL, o.Dial, n.metrics.RedisCalls)
	if err != nil {
		return nil, err
	}
	n.redis = clients
	if known != nil {
		n.changes = changefeed.NewRedis(changefeed.RedisOptions{Client: clients.log, Followed: n.followed, Lists: o.Lists})
	}
	return n, nil
}

// openDatabase makes what calls Postgres, which need not run. proven is that of postgres.Options.
func (n *Node) openDatabase(ctx context.Context, proven func() string) error {
	o := n.options
	database, err := postgres.Open(ctx, postgres.Options{URL: o.DatabaseURL, ReplicationURL: o.ReplicationURL, Replicas: o.ReplicaURL,
		Connections: o.DatabaseConnections, QueryTimeout: o.QueryTimeout, Followed: n.followed, Proven: proven, Dial: o.Dial})
	if err != nil {
		return SettingError{err}
	}
	n.database, n.pages, n.keys = database, origin.New(database, o.Lists, n.metrics.Queried), apikey.NewStore(database, o.Lists)
	n.finder = &fleet.Finder{Followed: n.followed, Needed: n.identifies, Ask: database.Keys.Identify, Away: page.ErrUnavailable, Epoch: n.changes.Epoch}
	return nil
}

// New wires a node. An error ends the process: what was opened until then is not closed.
func New(ctx context.Context, o Options) (*Node, error) {
	n, err := newNode(o)
	if err != nil {
		return nil, err
	}
	n.certificate, err = o.load()
	if err != nil {
		return nil, err
	}
	logger, clock := slog.New(o.Log), boottime.New()
	n.logger, n.claim = logger, fleet.NewClaim(n.redis.log, n.followed).Renew
	err = n.openDatabase(ctx, func() string { return n.Cache.PrimaryStart() }) // there is a cache before the first query
	if err != nil {
		return nil, err
	}
	n.Cache, err = cache.New(cache.Options{
		Origin: n.pages, Memory: int64(o.CacheMemory), Redis: n.redis.pages, Followed: n.followed, Bound: o.FreshnessBound,
		TTL: o.CacheTTL, MaxStale: o.MaxStale, FillTimeout: o.QueryTimeout + fillSlack, Clock: clock,
		CommitApplied: n.metrics.CommitApplied, Mismatched: n.mismatched,
		Hurry: func(ctx context.Context) { n.log.Hurry(ctx) }, // there is a log before the first heartbeat
	})
	if err != nil {
		return nil, err
	}
	n.limiter = limiter.New(limiter.Options{Redis: n.redis.limiter, Prefix: n.followed.Prefix(), NodeID: n.name(),
		FailureMode: o.LimiterFailureMode, Clock: clock})
	if o.Traces {
		n.tracer = tracing.New(ctx, o.Version, logger)
	}
	n.maxConnections = limitConnections(o.Flags, descriptorLimit(), memoryLimit(), logger)
	n.usage = usage.Start(usage.NewStore(n.database).Add)
	n.server = edge.New(edge.Options{
		Lists: o.Lists, Cache: n.Cache, Limiter: n.limiter, Lookup: n.keys.Lookup, Forms: n.keys.Forms, Grace: o.KeyGrace, Usage: n.usage, Clock: clock,
		Metrics: n.metrics.Edge, Logger: logger, Proxies: o.TrustedProxies, MaxConnections: n.maxConnections, NoDocs: o.NoDocs,
		AccessLog: o.AccessLog, Tracer: n.tracer,
	})
	if o.FreshnessBound > 0 {
		n.followChanges()
	}
	n.openAdmin()
	return n, nil
}

// followChanges makes the follower, which writes the log of changes while this node
// holds the slot, and the subscriber, which reads it for pages and keys.
func (n *Node) followChanges() {
	o := n.options
	n.log = changefeed.NewLocal()
	if n.changes != nil {
		n.log = n.changes
	}
	n.feed = changefeed.NewSubscriber(n.log, n.followed, n.logger, n.Cache, n.server.Keys)
	n.follower = follower.New(follower.Options{Lists: o.Lists, DatabaseURL: o.ReplicationURL, Log: n.log, Followed: n.followed,
		LogKept: o.CacheTTL + o.MaxStale + time.Minute, Slot: o.Slot, Silence: n.feed.Silence, Logger: n.logger})
}

// mismatched logs that rows in memory were not those of the database.
func (n *Node) mismatched(m cache.Mismatch) {
	n.logger.Error("rows in memory were not those of the database: they are read again", "list", m.Table.List.Name, "tenant", m.Table.Tenant,
		"kind", m.Kind, "position", m.Position.String(), "held", m.Held.String(), "database", m.Database.String())
}

// storeCheckpoint stores when tables last changed, for nodes that start, if this node follows: so one of the fleet does it.
func (n *Node) storeCheckpoint(ctx context.Context) {
	if !n.follower.Stats().Following {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkpointEvery)
	defer cancel()
	c := n.Cache.Checkpoint()
	if c != nil {
		_ = n.changes.SetCheckpoint(ctx, c) // changes reports a refusal itself (Redis.Failure)
	}
}

// identifies reports whether the node itself has to ask which database it reads, because no
// follower does or none can connect.
func (n *Node) identifies() bool {
	return n.follower == nil || n.followed.Digest() == "" || n.follower.Incapable() != nil
}

// incapable returns why changes cannot be followed; nil = they can, as far as is known. What a
// standby lacks is ignored.
func (n *Node) incapable() error {
	if n.database.WrongServer() != nil {
		return nil
	}
	return n.follower.Incapable()
}

// expireByAge makes pages expire by age while no node can follow changes.
func (n *Node) expireByAge(ctx context.Context) {
	byAge := false
	repeat(ctx, watchInterval, func(context.Context) {
		if now := n.incapable() != nil && n.feed.Silence() > followAgain; now != byAge {
			byAge = now
			n.Cache.SetTTLMode(now)
		}
	})
}

// restWhileIdle has the log read more seldom while no requests come.
func (n *Node) restWhileIdle(ctx context.Context) {
	seen, last := uint64(0), time.Now()
	repeat(ctx, watchInterval, func(context.Context) {
		requests := n.metrics.Edge.Totals().Requests
		if requests != seen {
			seen, last = requests, time.Now()
		}
		pause := time.Duration(0)
		if time.Since(last) > restAfter {
			pause = min(restPause, (n.options.FreshnessBound-proofAge)/2) // Rest makes proofs older by twice this
		}
		n.rests.Store(pause > 0)
		n.feed.Rest(pause)
	})
}

// verify has the cache verify a page, unless nobody reads pages.
func (n *Node) verify(ctx context.Context) {
	if !n.rests.Load() {
		n.Cache.Verify(ctx)
	}
}

// openAdmin makes what operators see of the node: health, metrics and settings.
func (n *Node) openAdmin() {
	settings, log := n.options.Settings, n.options.Log
	n.probes = []func(context.Context){n.Cache.Probe, n.pages.Probe, n.keys.Probe}
	if n.redis.pages != nil || n.follower != nil {
		settings["database"] = n.followed
	}
	settings["max-connections"] = n.maxConnections
	settings["lists"] = digests(n.options.Lists)
	n.health = admin.NewHealth(n.logger, func() string { return n.Cache.Mode().String() }, checks{n}.table()...)
	n.metrics.Collect(func() metrics.Snapshot {
		s := metrics.Snapshot{Cache: n.Cache.Stats(), Limiter: n.limiter.Stats(), Origin: n.pages.Stats(), Keys: n.server.Keys.Stats(), Usage: n.usage.Stats(),
			KeyBreakerOpen: n.keys.BreakerOpen(), Ready: n.health.Ready(), Checks: n.health.Metrics(), CertificateExpiry: n.certificate.expiry(),
			LogLinesLost: log.lines.Lost()}
		s.Connections, s.MaxConnections = n.server.Connections()
		if n.follower != nil {
			s.Follower, s.Feed = n.follower.Stats(), n.feed.Stats()
		}
		return s
	})
	o := admin.Options{Names: adminNames(settings), Metrics: n.metrics.Handler(), Log: log.recent, Records: n.server.Records, Settings: settings,
		Health: n.health, Self: n.state, Keys: n.busiestKeys}
	if n.redis.pages != nil {
		n.roster = &roster{redis: n.redis.log, followed: n.followed, state: n.state}
		o.Fleet = n.roster.nodes
	}
	n.admin = admin.NewServer(o, slog.NewLogLogger(log, slog.LevelWarn))
}

// digests are the names of lists, each with the digest of its resolved description: those of a fleet are the same.
func digests(lists *list.Set) (all []string) {
	for _, l := range lists.Lists {
		all = append(all, l.Name+":"+l.Digest.String())
	}
	return all
}

// name is what tells this node from others: --node-id, or else the machine's name with the port
// of the admin listener. A node that is started again has the same name.
func (n *Node) name() string {
	if n.options.NodeID != "" {
		return n.options.NodeID
	}
	host, _ := os.Hostname()
	_, port, _ := net.SplitHostPort(n.options.Private.Addr().String())
	return net.JoinHostPort(host, port)
}

// state returns the state of this node for the status pages of all nodes.
func (n *Node) state() admin.NodeState {
	s := admin.NodeState{Name: n.name(), Version: n.options.Version, Revision: n.options.Revision, Started: n.started,
		Ready: n.health.Ready(), Mode: n.Cache.Mode().String(), Down: []string{}, Counts: n.metrics.Edge.Totals()}
	if n.Cache.Mode() != cache.ModeTTL {
		s.Proof = new(n.Cache.ProofAge().Seconds())
	}
	s.Follower = n.follower != nil && n.follower.Stats().Following
	for _, c := range n.health.States() {
		if c.Light && c.Checked && !c.Up {
			s.Down = append(s.Down, c.Name)
		}
	}
	s.Nodes = n.limiter.Stats().Nodes
	if n.feed != nil {
		s.Epoch = n.feed.Stats().Epoch
	}
	return s
}

// busiestKeys returns the keys with the most requests in the last seconds, the busiest first.
func (n *Node) busiestKeys() []admin.KeyState {
	uses := n.usage.Stats().Busiest
	all := make([]admin.KeyState, len(uses))
	for i, use := range uses {
		l := n.server.Keys.Label(use.ID)
		all[i] = admin.KeyState{ID: use.ID.String(), Prefix: l.Prefix, Name: l.Name, Workspace: use.Workspace.String(), Requests: use.Requests, Refused: use.Refused}
	}
	return all
}

// adminNames are host names by which requests may reach the admin listener: the host of
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

// Serve answers until ctx ends or a listener fails, and then stops in order: not ready,
// draining, server shut down, layers closed.
func (n *Node) Serve(ctx context.Context) error {
	failed := make(chan error, 2)
	go func() { failed <- n.server.Serve(n.certificate.secure(n.options.Public)) }()
	go func() { failed <- n.admin.Serve(n.options.Private) }()
	running, stop := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() { n.health.Run(running) })
	background.Go(func() { notifySystemd(running, n.options.NotifySocket, n.health.Ready, n.logger) })
	for _, probe := range n.probes {
		background.Go(func() { repeat(running, watchInterval, probe) })
	}
	if n.follower != nil {
		background.Go(func() { n.follower.Run(running) })
		background.Go(func() { n.feed.Run(running) })
		background.Go(func() { n.expireByAge(running) })
		background.Go(func() { n.restWhileIdle(running) })
		if n.options.Verify > 0 {
			background.Go(func() { repeat(running, n.options.Verify, n.verify) })
		}
	}
	if n.changes != nil {
		background.Go(func() { repeat(running, checkpointEvery, n.storeCheckpoint) })
	}
	if n.redis.pages != nil {
		background.Go(func() { n.finder.Run(running) })
		background.Go(func() { n.roster.run(running) })
	}
	n.logger.Info("listening", "version", n.options.Version, "public", n.options.Public.Addr().String(),
		"admin", n.options.Private.Addr().String(), "maxConnections", n.maxConnections)
	var err error
	select {
	case <-ctx.Done():
		n.health.Drain()
		n.server.Drain()
		n.logger.Info("draining", "for", n.options.Drain.String())
		time.Sleep(n.options.Drain)
	case err = <-failed:
	case err = <-n.wrongSetting:
	}
	stop()
	background.Wait()
	err = errors.Join(err, n.close())
	n.logger.Info("stopped")
	return err
}

// close closes the server and then the layers below it. The cache is closed only if all
// requests have ended, because requests read it.
func (n *Node) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
	defer cancel()
	err := n.server.Shutdown(ctx)
	if err == nil {
		err = n.Cache.Close(ctx)
	}
	if err := n.usage.Close(ctx); err != nil {
		n.logger.Warn("the latest usage of keys is lost", "error", err)
	}
	err = errors.Join(err, n.limiter.Close(ctx))
	tracing, cancel := context.WithTimeout(context.Background(), traceCloseTimeout)
	defer cancel()
	if err := n.tracer.Close(tracing); err != nil {
		n.logger.Warn("the last traces were not sent", "error", err)
	}
	n.redis.close()
	return errors.Join(err, n.database.Close(ctx), n.admin.Close())
}

// repeat calls f again and again, with a pause after each call, until ctx ends.
func repeat(ctx context.Context, pause time.Duration, f func(context.Context)) {
	for ; ctx.Err() == nil; fleet.Pause(ctx, pause) {
		f(ctx)
	}
}
