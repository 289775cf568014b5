package edge

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/origin/apikey"
)

// After a sleep of the machine, a node trusts neither pages nor keys from before, until it
// has a new proof.
func TestANodeIsTrustedAgainAfterASleep(t *testing.T) {
	for name, happens := range map[string]func(m *boottimetest.Machine){
		"nothing":            func(*boottimetest.Machine) {},
		"a sleep of 10 s":    func(m *boottimetest.Machine) { m.Sleep(10 * time.Second) },
		"a sleep of 200 ms":  func(m *boottimetest.Machine) { m.Sleep(200 * time.Millisecond) },
		"clock set by 1 h":   func(m *boottimetest.Machine) { m.Set(time.Hour) },
		"set, no boot clock": func(m *boottimetest.Machine) { m.NoBootClock = true; m.Set(10 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := boottimetest.NewMachine()
				log := changefeed.NewLocal()
				c, err := cache.New(cache.Options{Memory: 1 << 20, TTL: time.Minute, MaxStale: time.Minute, FillTimeout: time.Second, Clock: m.Clock,
					Bound: 500 * time.Millisecond})
				must(0, err)
				defer c.Close(context.Background())
				var queries atomic.Int64
				hash, _ := apikey.HashOf([]byte(aKey))
				keys := apikey.NewCache(func(_ context.Context, hashes []apikey.Hash, _ string) (map[apikey.Hash]apikey.Key, error) {
					queries.Add(1)
					return map[apikey.Hash]apikey.Key{hash: {ID: uuid.UUID{1}, Workspace: uuid.UUID{2}, Scopes: 1 << lists.Items, StartedAt: unique.Make("r")}}, nil
				}, func(apikey.Key, *client) {}, time.Minute, m.Clock)
				defer keys.Close()
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				at := changefeed.Position{Term: 1}
				add := func(e changefeed.Entry) { at.N++; e.Position = at; _ = log.Append(ctx, "e", e) }
				add(changefeed.Entry{TermStart: &changefeed.TermStart{}})
				_ = log.SetEpoch(ctx, "", "e")
				var beats sync.WaitGroup
				beats.Go(func() {
					changefeed.NewSubscriber(log, &changefeed.Followed{}, slog.Default(), c, keys).Run(ctx)
				})
				defer func() { stop(); beats.Wait() }()
				beats.Go(func() {
					for ; ctx.Err() == nil; boottimetest.Pass(50 * time.Millisecond) {
						after := at
						boottimetest.Pass(7 * time.Millisecond) // as long as a snapshot, decoding and Redis take
						add(changefeed.Entry{Heartbeat: &changefeed.Heartbeat{LSN: 1, Snapshot: "100:100:", Timeline: "s/1", StartedAt: "r", After: after}})
					}
				})
				measure := func(what string) {
					trusted, n, q := 0, 0, queries.Load()
					for range 300 {
						boottimetest.Pass(10 * time.Millisecond)
						if c.Mode() == cache.ModeFollowed {
							trusted++
						}
						_, _ = keys.Authenticate(ctx, []byte(aKey), func() bool { return false })
						n++
					}
					if looked := queries.Load() - q; what != "before" && (trusted < n*9/10 || looked > 3) {
						t.Errorf("%s: trusted in %d of %d looks, %d queries of keys, proof age %s", what, trusted, n, looked, c.Stats().ProofAge)
					}
				}
				measure("before")
				happens(m)
				measure("after")
				boottimetest.Pass(time.Minute)
				measure("a minute later")
			})
		})
	}
}
