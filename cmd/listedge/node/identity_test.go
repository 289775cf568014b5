package node

import (
	"log/slog"
	"testing"
	"time"

	"listedge/internal/sandbox/postgrestest"
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

// Before a node has read which timeline the fleet follows, it is not ready and serves nothing
// from the database.
func TestANodeThatHasNotLookedYet(t *testing.T) {
	t.Parallel()
	server := sandboxtest.PostgresWith(t, nil)
	if err := postgrestest.Make(t.Context(), server, "listedge", admin.MigrateUp); err != nil {
		t.Fatal(err)
	}
	url := server.URL("listedge")
	public, private, err := Listen(ListenFlags{"127.0.0.1:0", "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(t.Context(), Options{Database: DatabaseURLs{url, url}, Settings: map[string]any{}, Log: newLogOn(slog.DiscardHandler), Public: public, Private: private,
		Flags: Flags{CacheMemory: 1 << 20, FreshnessBound: time.Second, QueryTimeout: time.Second, LimiterFailureMode: limiter.FailLocal,
			ServerFlags: ServerFlags{RedisURL: sandboxtest.Redis(t).URL(), DatabaseConnections: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.close() })
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
