package node

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"listedge/edge/admin"
	"listedge/internal/fleet"
	"listedge/internal/sandbox/redistest"
)

// Calls are timed by what they are for, one call a command or pipeline, and also those
// that fail.
func TestCallsToRedisAreTimed(t *testing.T) {
	server, _ := redistest.Start(t)
	var calls [2]atomic.Int64 // for pages, and for limits
	purposes := []string{"pages", "limits"}
	clients, err := openRedis(server.URL(), nil, func(purpose string) func(time.Duration) {
		return func(took time.Duration) {
			if took > 0 {
				calls[slices.Index(purposes, purpose)].Add(1)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(clients.close)
	ctx := context.Background()
	if err := clients.pages.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	const pipelines = 50
	for range pipelines {
		pipe := clients.limiter.Pipeline()
		pipe.Incr(ctx, "a")
		pipe.Incr(ctx, "a")
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := clients.limiter.Do(ctx, "unknown").Err(); err == nil {
		t.Fatal("an unknown command was answered")
	}
	const connecting = 8 // calls that the client makes on new connections
	for i, want := range []int64{1, pipelines + 1} {
		if n := calls[i].Load(); n < want || n > want+connecting {
			t.Errorf("%s: %d calls, want %d", purposes[i], n, want)
		}
	}
}

// The roster has the nodes that wrote an entry lately, also after Redis' clock has gone back.
func TestTheRosterHasWhoWroteLately(t *testing.T) {
	_, client := redistest.Start(t)
	ctx, r := context.Background(), &roster{redis: client, followed: &fleet.Followed{}}
	for name, seen := range map[string]time.Duration{"now": 0, "old": -time.Hour, "future": time.Hour} {
		entry, _ := json.Marshal(rosterEntry{NodeState: admin.NodeState{Name: name}, Seen: time.Now().Add(seen).UnixMilli()})
		if err := client.HSet(ctx, r.key(), name, entry, "damaged", "{").Err(); err != nil {
			t.Fatal(err)
		}
	}
	entries, others, err := r.read(ctx)
	if slices.Sort(others); err != nil || len(entries) != 1 || entries[0].Name != "now" || !slices.Equal(others, []string{"damaged", "future", "old"}) {
		t.Errorf("%+v, others %v, %v", entries, others, err)
	}
}

func TestRedisURLs(t *testing.T) {
	for text, want := range map[string]struct {
		addresses        string
		user, pass, name string
		database         int
		tls              bool
	}{
		"redis://host":                            {addresses: "host:6379"},
		"redis://host:7000/3":                     {addresses: "host:7000", database: 3},
		"rediss://user:p%40ss@host":               {addresses: "host:6379", user: "user", pass: "p@ss", tls: true},
		"redis://:secret@host":                    {addresses: "host:6379", pass: "secret"},
		"redis://a:1,b:2,c":                       {addresses: "a:1 b:2 c:6379"},
		"redis://a:1,redis://b:2":                 {addresses: "a:1 b:2"},
		"redis://[::1]:7000":                      {addresses: "[::1]:7000"},
		"redis://[::1]":                           {addresses: "[::1]:6379"},
		"redis://[fe80::1%br-lan]:7000":           {addresses: "[fe80::1%br-lan]:7000"},
		"redis+sentinel://:pw@a,b:26380/mymaster": {addresses: "a:26379 b:26380", name: "mymaster", pass: "pw"},
		"redis+sentinel://a/mymaster/2":           {addresses: "a:26379", name: "mymaster", database: 2},
	} {
		o, err := ParseRedisURL(text)
		if err != nil || strings.Join(o.Addrs, " ") != want.addresses || o.Username != want.user || o.Password != want.pass ||
			o.MasterName != want.name || o.DB != want.database || (o.TLSConfig != nil) != want.tls {
			t.Errorf("%s: %+v, %v", text, o, err)
		}
	}
	for _, text := range []string{"host:6379", "http://host", "redis://", "redis://a,,b", "redis://a,b/1", "redis://a/x", "redis://a/-1",
		"redis+sentinel://a", "redis://%zz@a", "redis://:p@ss@a", "redis+sentinel://u:12/x@h",
		"redis://u:pw@a:1,u:pw@b:2", "redis://:pw@a,redis://:pw@b", "redis+sentinel://a/m?sentinel_password=x", "redis://a/0?db=2",
		"redis://a:99999", "redis://a:0", "redis://a:b", "redis://a:1:2", "redis://a:6379?x=1", "redis://::1", "redis://a/99999999999999999999"} {
		if o, err := ParseRedisURL(text); err == nil {
			t.Errorf("%s: read as %+v", text, o)
		}
	}
	for _, secret := range []string{"user:s3cret@host", "redis://user:s3cret@host:x", "redis://:s3cret@host/x", "other://:s3cret@host"} {
		if _, err := ParseRedisURL(secret); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a password is shown: %v", err)
		}
	}
}
