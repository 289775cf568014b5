package node

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/limiter"
	"listedge/origin/admin"
	"listedge/origin/apikey"
)

func TestWhenAnswersMayBeJudged(t *testing.T) {
	for _, c := range []struct {
		name        string
		looked      bool
		sinceAnswer time.Duration
		may         bool
	}{
		{"the epoch was looked at", true, 0, true},
		{"the database has just answered", false, 0, false},
		{"Redis has not answered yet", false, startTimeout - 1, false},
		{"Redis does not answer", false, startTimeout, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if may := mayJudge(c.looked, c.sinceAnswer); may != c.may {
				t.Error(may)
			}
		})
	}
}

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
	n, err := New(t.Context(), Options{DatabaseURL: url, ReplicationURL: url, Settings: map[string]any{}, Log: newLogOn(slog.DiscardHandler),
		Public: public, Private: private,
		Flags: Flags{CacheMemory: 1 << 20, FreshnessBound: time.Second, QueryTimeout: time.Second, LimiterFailureMode: limiter.FailLocal,
			ServerFlags: ServerFlags{RedisURL: redis.URL(), DatabaseConnections: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.close() })
	return n, server, redis
}

// Before a node has read which timeline the fleet follows, it is not ready and serves nothing
// from the database.
func TestANodeThatHasNotLookedYet(t *testing.T) {
	t.Parallel()
	n, _, _ := aNode(t)
	reads := func() error {
		_, err := apikey.NewStore(n.database).Lookup(t.Context(), []apikey.Hash{{}}, "")
		return err
	}
	if err := reads(); err == nil {
		t.Errorf("the database was read: %v", err)
	}
	if err := n.checkTimeline(); err == nil {
		t.Error("ready")
	}
	n.findTimeline(t.Context())
	if err := n.checkTimeline(); err != nil {
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
	n.findTimeline(t.Context())
	n.followed.ObserveEpoch(changefeed.EpochName{Identity: n.followed.Digest(), Timeline: 2}.String())
	if n.checkTimeline() == nil {
		t.Fatal("not an old primary")
	}
	if err := redistest.Client(t, redis).Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		check func(context.Context) error
		kill  func() error
	}{
		"an old primary": {n.pingPostgres, func() error { return postgres.Kill(syscall.SIGQUIT) }},
		"Redis, which refuses to name its policy": {n.checkEviction, redis.Kill},
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
