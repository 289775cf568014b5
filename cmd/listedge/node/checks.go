package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/edge/admin"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/remedy"
	"listedge/limiter"
	originadmin "listedge/origin/admin"
	"listedge/origin/follower"
	"listedge/origin/postgres"
)

// checks ask a node's servers, and the node itself.
type checks struct{ *Node }

// table is what the node asks in the background, and the doctor once.
func (n checks) table() []admin.Check {
	primary, servers := []string{"Postgres", "timeline"}, []string{"Postgres", "Redis"}
	needs := originadmin.NewReadiness(n.database, n.options.Lists, n.pages)
	all := []admin.Check{
		{Name: "Postgres", Run: n.toStart(n.pingPostgres), Effect: admin.Starts, Runbook: "ListedgePostgresDown", Light: true,
			Broken: "Postgres is down: neither pages nor keys are read from the primary"},
		// Tables, rights and settings change rarely, and the check takes four queries.
		{Name: "reading", Every: 5 * time.Second, Effect: admin.Starts, After: primary, Runbook: "ListedgeOriginBreakerOpen",
			Broken: "pages or keys are not read from Postgres", Fine: strings.Join(n.options.Lists.Names(), ", ") + " and API keys, as a node reads them",
			Run: n.toStart(n.unlessIdle(func(ctx context.Context) error {
				return cmp.Or(needs.Ready(ctx), breakerFailure("pages", n.pages.Stats().BreakerOpen), breakerFailure("keys", n.keys.BreakerOpen()))
			}))},
		{Name: "usage", Known: func() error { return n.usage.Stats().Failure }, After: primary,
			Broken: "the usage of keys is not written to Postgres", Runbook: "ListedgeUsageUnwritten", Fine: "this user may write the usage of keys",
			Ask: func(ctx context.Context) error { return originadmin.CheckUsage(ctx, n.database.Keys.Pool) }},
		{Name: "trusted-proxies", Broken: "all clients of a proxy count as one address",
			Known: func() error {
				todo, err := n.server.Forwarder()
				return remedy.Add(err, todo)
			}},
	}
	if n.certificate != nil {
		all = append(all, admin.Check{Name: "certificate", Known: n.certificate.check, Runbook: "ListedgeCertificateExpires",
			Broken: "the certificate is not renewed"})
	}
	if n.redis.pages != nil {
		all = append(all, n.ofRedis()...)
	}
	if n.options.FreshnessBound > 0 {
		all = append(all,
			admin.Check{Name: "timeline", Run: func(context.Context) error { return n.checkTimeline() }, Effect: admin.Starts, After: servers,
				Runbook: "ListedgeFreshnessUntrusted", Broken: "the database server is on an old timeline: its answers are not served as fresh"},
			admin.Check{Name: "Follower", Known: n.checkFollower, After: append(servers, "timeline", "fleet"), Runbook: "ListedgeNoFollower", Light: true,
				Broken: "changes are not followed", Ask: n.askFollower, Fine: "changes can be followed"},
			admin.Check{Name: "Slot", Known: n.checkSlot, After: primary, Broken: "max_slot_wal_keep_size is not set"})
	}
	for i, s := range n.pages.Stats().Standbys {
		all = append(all, admin.Check{Name: "Replica " + s.Server, Runbook: "ListedgeReplicaFails", Light: true,
			Broken: "the replica " + s.Server + " is not queried", Fine: "it follows the primary",
			Run: func(ctx context.Context) error { return n.pages.CheckStandby(ctx, i) }})
	}
	return all
}

// ofRedis are the checks of a node with Redis.
func (n checks) ofRedis() []admin.Check {
	redis := []string{"Redis"}
	all := []admin.Check{
		{Name: "Redis", Every: 2 * time.Second, Run: n.writeRedis, Ask: n.tryRedis, Fine: "the user has all rights that a node needs",
			Runbook: "ListedgeRedisDown", Light: true,
			Broken: "Redis is down: this node enforces limits alone, and has no proof that its pages are fresh"},
		{Name: "fleet", Every: fleet.ClaimEvery, Run: n.checkFleet, Effect: admin.Always, After: []string{"Postgres"}, Runbook: "ListedgeWrongDatabase",
			Broken: "the node is not known to be one of its fleet"},
		{Name: "identity", Known: n.finder.Failure, Broken: "the node may not query which database it reads: pages are not stored in Redis"},
		{Name: "Redis eviction", Every: time.Minute, After: redis, Runbook: "ListedgeRedisEvicts",
			Broken: "Redis may evict buckets and the log of changes", Run: n.askRedis(evictionFailure), Fine: "nothing is evicted"},
		{Name: "Redis maxmemory", Ask: n.askRedis(maxmemoryFailure), After: redis, Broken: "pages may take all memory of the machine", Fine: "it is set"},
		{Name: "Redis pages", After: redis, Broken: "pages are not stored in Redis", Runbook: "ListedgeCacheRedisBreakerOpen",
			Known: func() error {
				s := n.Cache.Stats()
				return cmp.Or(s.RedisFailure, breakerFailure("Redis", s.RedisBreakerOpen))
			}},
		{Name: "Redis limits", Known: func() error { return n.limiter.Stats().Failure }, After: redis,
			Broken: "this node enforces limits alone", Runbook: "ListedgeLimiterDegraded"},
	}
	if n.changes != nil {
		all = append(all, admin.Check{Name: "Redis changes", Known: n.changes.Failure, After: redis, Broken: "changes do not go through Redis"})
	}
	return all
}

// toStart makes a check end the node if, before it has passed, the database refuses a setting: the
// node would never start. Later the servers that serve it may be others.
func (n checks) toStart(check func(context.Context) error) func(context.Context) error {
	passed := false
	return func(ctx context.Context) error {
		err := check(ctx)
		passed = passed || err == nil
		if !passed && errors.Is(err, postgres.ErrParameter) {
			select {
			case n.wrongSetting <- err:
			default: // it ends already
			}
		}
		return err
	}
}

// unlessIdle makes a check that has passed ask nothing while the node rests: so it keeps no connection open.
func (n checks) unlessIdle(check func(context.Context) error) func(context.Context) error {
	last := errors.New("it has not run")
	return func(ctx context.Context) error {
		if last != nil || !n.rests.Load() {
			last = check(ctx)
		}
		return last
	}
}

func breakerFailure(what string, open bool) error {
	if !open {
		return nil
	}
	return errors.New(what + " failed several times in a row")
}

// pingPostgres returns nil if the primary answers, or an old primary: the check "timeline" says
// what is wrong with that. It pings on the connections for keys, because those for pages may all
// be busy.
func (n checks) pingPostgres(ctx context.Context) error {
	err := postgres.ExplainParameter(n.database.Keys.Ping(ctx), n.database.Keys.Pool.Config().ConnConfig)
	if err == nil && n.followed.OldTimeline() == nil {
		err = n.database.WrongServer()
	}
	if postgres.Code(err) == "42501" { // insufficient_privilege: CONNECT
		err = remedy.Add(err, "GRANT CONNECT ON DATABASE … TO …, as `listedge migrate grants` prints it")
	}
	return err
}

// writeRedis returns nil if Redis takes a write. A replica, a full server and one whose user
// lacks rights answer a ping, and refuse writes.
func (n checks) writeRedis(ctx context.Context) error {
	err := n.redis.limiter.Set(ctx, n.followed.Prefix()+"check:{changes}:"+n.name(), "x", time.Minute).Err()
	return remedy.Add(err, redisRemedy(err))
}

// askRedis makes a check of what INFO says of the memory of Redis. If Redis refuses to answer, the
// check judges an empty answer: a node does not need the right to ask.
func (n checks) askRedis(judge func(memory map[string]string) error) func(context.Context) error {
	return func(ctx context.Context) error {
		info, err := n.redis.limiter.InfoMap(ctx, "memory").Result()
		if err != nil && !redis.IsPermissionError(err) && !strings.HasPrefix(err.Error(), "ERR ") {
			return remedy.Add(err, redisRemedy(err))
		}
		return judge(info["Memory"])
	}
}

// evictionFailure returns an error if Redis, by the maxmemory-policy in its INFO, evicts keys: a
// bucket is then full again, and a gap in the log of changes makes every node discard its pages.
func evictionFailure(info map[string]string) error {
	if policy := info["maxmemory_policy"]; policy != "noeviction" && policy != "" {
		return remedy.Add(errors.New("maxmemory-policy is "+policy), "set maxmemory-policy to noeviction")
	}
	return nil
}

// maxmemoryFailure returns an error if the memory of Redis has no bound.
func maxmemoryFailure(info map[string]string) error {
	if info["maxmemory"] == "0" {
		return remedy.Add(errors.New("maxmemory is not set"), "set maxmemory")
	}
	return nil
}

// askFollower returns what a follower lacks.
func (n checks) askFollower(ctx context.Context) error {
	if why := follower.Check(ctx, n.options.ReplicationURL, n.options.Lists); why != nil {
		return fmt.Errorf("pages expire after --cache-ttl: %w", why)
	}
	return nil
}

// checkFollower returns nil while heartbeats of a follower arrive in time, or late for at most
// two seconds (followAgain): a single late one is no outage.
func (n checks) checkFollower() error {
	if s := n.Cache.Stats(); s.Mode == cache.ModeFollowed || s.Mode == cache.ModeUntrusted && s.ProofAge < s.Bound+followAgain {
		return nil
	}
	if why := n.incapable(); why != nil {
		return fmt.Errorf("pages expire after --cache-ttl: %w", why)
	}
	if silence := n.feed.Silence(); silence > followAgain {
		err := fmt.Errorf("no heartbeat of a follower for %s", silence.Round(time.Second))
		if making := n.follower.Making(); making != "" {
			err = fmt.Errorf("%w: %s", err, making)
		}
		return err
	}
	return errors.New("heartbeats are late")
}

// checkSlot returns what the slot may harm. That a temporary slot costs something is advice: it is what --slot auto means.
func (n checks) checkSlot() error {
	risk := n.follower.SlotRisk()
	if n.options.Slot == "persistent" {
		return risk
	}
	return admin.Advise(risk)
}

// checkTimeline fails while the server of the database is not known to be on the timeline that
// the fleet follows.
func (n checks) checkTimeline() error {
	if !n.followed.KnowsTimeline() {
		return errors.New("the timeline that the fleet follows is not known yet")
	}
	return remedy.Add(n.followed.OldTimeline(), n.followed.OldTimelineRemedy())
}

// checkFleet returns an error while the fleet of this node's region follows another database
// than this node. What Redis said last holds while it does not answer; a node that has
// never read it has nothing to compare with, and may serve.
func (n checks) checkFleet(ctx context.Context) error {
	identity, known := n.followed.Identity()
	if !known && n.finder.Failure() == nil {
		return remedy.Add(errors.New("which database this node reads is not known yet"), "see ListedgePostgresDown in the runbook")
	}
	if other := n.claim(ctx); known && other != "" {
		return remedy.Add(fmt.Errorf("the fleet follows %s, and this node reads %s", other, identity),
			"correct --database-url, or give the nodes of each database a --region of their own")
	}
	return nil
}

// redisRemedy says what to do about an error of Redis.
func redisRemedy(err error) string {
	if err == nil {
		return ""
	}
	for _, class := range []struct{ prefix, remedy string }{ // the client takes "ERR " away from an error's begin
		{"READONLY", "this is a replica: name the master in --redis-url, or use redis+sentinel://"},
		{"OOM", "its memory is full: raise maxmemory"},
		{"NOPERM", "give the user all rights that docs/SECURITY.md lists"},
		{"WRONGPASS", "correct the user or the password in --redis-url"},
		{"NOAUTH", "name a password in --redis-url"},
		{"MISCONF", "it cannot save to its disk: see its log"},
		{"NOREPLICAS", "too few replicas follow it: start them, or lower min-replicas-to-write"},
		{"LOADING", "it loads its data: wait"},
		{"CLUSTERDOWN", "a master of the Cluster is missing: start it again"},
		{"MOVED", "this is a Cluster: name several of its nodes in --redis-url, as redis://a:6379,b:6379"},
		{"This instance has cluster support disabled", "this is no Cluster: name one address in --redis-url, or use redis+sentinel://"},
		{"syntax error", "use Redis 6.2 or later"}, // which has XTRIM MINID
		{"unknown command", "use redis+sentinel://…/master if this is a Sentinel, and Redis 6.2 or later"},
	} {
		if redis.HasErrorPrefix(err, class.prefix) {
			return class.remedy
		}
	}
	timeout := net.Error(nil)
	switch {
	case strings.Contains(err.Error(), redis.Nil.Error()):
		return "the Sentinels know no such master: use their name for it in --redis-url"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		return "use rediss:// if that port speaks TLS, and check the server"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "see whether it hangs, whether it speaks TLS if --redis-url says so, and whether the network to it loses packets"
	}
	return "check that it runs, and that --redis-url names it"
}

// followerConnections are those of the follower, which are not in the pools.
const followerConnections = 2

// Examine runs the checks of a node's servers, without a node: it joins no fleet and follows no
// changes. It adds what no node notices before it harms a fleet of so many nodes. An error is a
// setting that cannot work.
func Examine(ctx context.Context, o Options, nodes int) (s admin.State, err error) {
	connections := o.DatabaseConnections + postgres.KeyConnections + postgres.UsageConnections + followerConnections
	o.ReplicationURL = cmp.Or(o.ReplicationURL, o.DatabaseURL)
	o.FreshnessBound, o.QueryTimeout, o.DatabaseConnections = time.Second, postgres.KeyTimeout, 1
	n, err := newNode(o)
	if err != nil {
		return s, err
	}
	defer n.redis.close()
	err = n.openDatabase(ctx, nil)
	if err != nil {
		return s, err
	}
	defer func() { _ = n.database.Close(ctx) }()
	soon, cancel := context.WithTimeout(ctx, postgres.ConnectTimeout)
	defer cancel()
	server, failed := postgres.IdentifyAt(soon, o.ReplicationURL)
	if errors.Is(failed, postgres.ErrParameter) {
		return s, failed
	}
	n.finder.Found(server, failed)
	if n.changes != nil {
		if epoch, err := n.changes.Epoch(ctx); err == nil && failed == nil {
			s.Self.Epoch = cmp.Or(epoch, "none")
			n.followed.ObserveEpoch(epoch)
		}
		close(n.followed.Known)
		claim := fleet.NewClaim(n.redis.log, n.followed)
		n.claim = func(ctx context.Context) (other string) { other, _ = claim.Other(ctx); return other }
	}
	var risks []originadmin.Risk
	s.Checks = admin.Examine(append(checks{n}.table(), admin.Check{Name: "settings", After: []string{"Postgres"}, Broken: "the settings of Postgres are not read",
		Ask: func(ctx context.Context) (err error) {
			risks, err = originadmin.Risks(ctx, n.database.Keys.Pool, o.Lists, o.Region, connections, nodes)
			return err
		}}))
	for _, r := range risks {
		s.Checks = append(s.Checks, admin.CheckState{Check: admin.Check{Name: r.Subject, Effect: admin.Effect(r.Effect), Fine: r.Fine}, Why: r.Why, Remedy: r.Remedy})
	}
	database, _ := n.followed.MarshalText()
	s.Settings = map[string]any{"database": string(database), "lists": digests(o.Lists)}
	if len(n.wrongSetting) > 0 {
		err = <-n.wrongSetting
	}
	return s, err
}

// tryRedis sends Redis all commands of nodes, with keys that begin with a prefix that no node uses.
// It returns why some fail: for lack of rights, all of which it names, or by another error.
func (n checks) tryRedis(ctx context.Context) (failed error) {
	if err := n.redis.log.Ping(ctx).Err(); err != nil && !redis.IsPermissionError(err) { // of a pipeline it would be another
		return remedy.Add(err, redisRemedy(err))
	}
	var lacking []string
	own := n.followed.Prefix() + "doctor-" + rand.Text()
	pipe := n.redis.log.Pipeline()
	for _, command := range slices.Concat([][]any{{"ping"}}, cache.RedisCommands(own), limiter.RedisCommands(own), changefeed.RedisCommands(own)) {
		pipe.Do(ctx, command...)
	}
	answers, _ := pipe.Exec(ctx)
	for _, answer := range answers {
		switch err := answer.Err(); {
		case err == nil, err == redis.Nil, redis.HasErrorPrefix(err, "NOSCRIPT"):
		case redis.IsPermissionError(err):
			right := "~listedge:*"
			if _, named, ok := strings.Cut(err.Error(), "run the '"); ok {
				name, _, _ := strings.Cut(named, "'")
				right = "+" + name
			}
			lacking = append(lacking, right)
		default: // such as a script that lacks a right
			failed = cmp.Or(failed, err)
		}
	}
	slices.Sort(lacking)
	if len(lacking) > 0 {
		return remedy.Add(errors.New("the user lacks "+strings.Join(slices.Compact(lacking), " ")), "ACL SETUSER with all rights that docs/SECURITY.md lists")
	}
	return remedy.Add(failed, redisRemedy(failed))
}
