package node

import (
	"context"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/limiter"
	"listedge/origin/admin"
	"listedge/origin/apikey"
)

// aNode has a private Postgres and a private Redis, and is not started.
func aNode(t *testing.T) (*Node, *sandbox.Postgres, *sandbox.Redis) {
	t.Helper()
	server, redis := sandboxtest.PostgresWith(t, nil), sandboxtest.Redis(t)
	if err := postgrestest.Make(t.Context(), server, "listedge", admin.MigrateUp); err != nil {
		t.Fatal(err)
	}
	url := server.URL("listedge")
	public, private, err := Listen(ListenFlags{"127.0.0.1:0", "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(t.Context(), Options{Lists: list.BuiltIn(), DatabaseURL: url, ReplicationURL: url, Settings: map[string]any{},
		Log:    newLogOn(slog.DiscardHandler),
		Public: public, Private: private,
		Flags: Flags{CacheMemory: 1 << 20, FreshnessBound: time.Second, QueryTimeout: time.Second, LimiterFailureMode: limiter.FailLocal,
			ServerFlags: ServerFlags{RedisURL: redis.URL(), DatabaseConnections: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.close() })
	return n, server, redis
}

// look runs the node's finder until it knows which timeline is followed.
func (n *Node) look(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go n.finder.Run(ctx)
	select {
	case <-n.followed.Known:
	case <-time.After(time.Minute):
		t.Fatal("it does not know which timeline is followed")
	}
}

// Before a node has read which timeline the fleet follows, it is not ready and serves nothing
// from the database.
func TestANodeThatHasNotLookedYet(t *testing.T) {
	t.Parallel()
	n, _, redis := aNode(t)
	reads := func() error {
		_, err := apikey.NewStore(n.database, list.BuiltIn()).Lookup(t.Context(), []apikey.Hash{{}}, "")
		return err
	}
	if err := reads(); err == nil {
		t.Errorf("the database was read: %v", err)
	}
	if err := (checks{n}).checkTimeline(); err == nil {
		t.Error("ready")
	}
	if err := redis.Freeze(); err != nil {
		t.Fatal(err)
	}
	n.look(t)
	if err := (checks{n}).checkTimeline(); err != nil {
		t.Error(err)
	}
	if err := reads(); err != nil {
		t.Error(err)
	}
}

// The check of a server that has ended fails, whatever else it forgives.
func TestServersThatEnd(t *testing.T) {
	t.Parallel()
	n, postgres, redis := aNode(t)
	n.look(t)
	n.followed.ObserveEpoch(fleet.EpochName{Identity: n.followed.Digest(), Timeline: 2}.String())
	if (checks{n}).checkTimeline() == nil {
		t.Fatal("not an old primary")
	}
	if err := redistest.Client(t, redis).Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		check func(context.Context) error
		kill  func() error
	}{
		"an old primary": {checks{n}.pingPostgres, func() error { return postgres.Kill(syscall.SIGQUIT) }},
		"Redis, which refuses to name its policy": {checks{n}.askRedis(evictionFailure), redis.Kill},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.check(t.Context()); err != nil {
				t.Errorf("while it runs: %v", err)
			}
			if err := c.kill(); err != nil {
				t.Fatal(err)
			}
			if c.check(t.Context()) == nil {
				t.Error("it has ended, and is fine")
			}
		})
	}
}

// Errors that Redis gives no code of their own are told apart by their texts. A Redis without XTRIM
// MINID, as before 6.2, says so by a syntax error.
func TestRedisOfOldVersions(t *testing.T) {
	_, client := redistest.Start(t)
	for command, want := range map[string]string{"xtrim listedge:log newest 1-1": "use Redis 6.2 or later", "unlink2 a": "if this is a Sentinel",
		"cluster info": "this is no Cluster"} {
		t.Run(command, func(t *testing.T) {
			var words []any
			for word := range strings.FieldsSeq(command) {
				words = append(words, word)
			}
			err := client.Do(t.Context(), words...).Err()
			if do := redisRemedy(err); err == nil || !strings.Contains(do, want) {
				t.Errorf("%v: %q", err, do)
			}
		})
	}
}

// A Redis without INFO, as that of some providers, is not taken for one that evicts or is down.
func TestARedisThatDoesNotKnowInfo(t *testing.T) {
	n := &Node{redis: redisClients{limiter: redistest.Client(t, sandboxtest.Redis(t, "--rename-command", "INFO", ""))}}
	if err := (checks{n}).askRedis(evictionFailure)(t.Context()); err != nil {
		t.Error(err)
	}
}
