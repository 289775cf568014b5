package limiter

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/redistest"
)

// beatsOnce is a client's hook that lets its node beat once: however slow the
// machine, the node counts the others no second time.
type beatsOnce struct{ beats *atomic.Int64 }

func (beatsOnce) DialHook(next redis.DialHook) redis.DialHook { return next }
func (beatsOnce) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (b beatsOnce) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		if args := command.Args(); len(args) > 1 && args[1] == beatScript && b.beats.Add(1) > 1 {
			command.SetErr(errors.New("withheld"))
			return command.Err()
		}
		return next(ctx, command)
	}
}

// Two nodes have just started when Redis dies, or refuses to be written to: the
// first has counted itself alone, the second both. Or it refused before.
func TestYoungNodesKeepThePromise(t *testing.T) {
	t.Parallel()
	refuse := func(t *testing.T, client *redis.Client) {
		t.Helper()
		if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		before, after func(*testing.T, *sandbox.Redis, *redis.Client)
	}{
		"dies": {after: func(t *testing.T, server *sandbox.Redis, _ *redis.Client) {
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
		}},
		"refuses writes":             {after: func(t *testing.T, _ *sandbox.Redis, client *redis.Client) { refuse(t, client) }},
		"refused writes all along":   {before: func(t *testing.T, _ *sandbox.Redis, client *redis.Client) { refuse(t, client) }},
		"was dead when they started": {before: func(t *testing.T, server *sandbox.Redis, _ *redis.Client) { _ = server.Kill() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client := startRedis(t)
			if c.before != nil {
				c.before(t, server, client)
			}
			var nodes []*Limiter
			for i := range int64(2) {
				own := redistest.Client(t, server)
				own.AddHook(beatsOnce{new(atomic.Int64)})
				l := open(t, Options{Redis: own})
				nodes = append(nodes, l)
				if c.before == nil {
					eventually(t, "its first count", func() bool { return l.Stats().Nodes == i+1 })
				}
			}
			if c.after != nil {
				c.after(t, server, client)
			}
			const burst = 20
			admitted := 0
			for _, l := range nodes {
				b := l.Bucket(KeyBucket("w", "k"), policy(t, 0.001, burst))
				for range 4 * burst {
					if l.Take(b, nil).Allowed {
						admitted++
					}
				}
			}
			if admitted == 0 || admitted > burst {
				t.Errorf("%d admitted, with a burst of %d", admitted, burst)
			}
		})
	}
}

// Who has counted for a while goes by it.
func TestANodeComesToKnowItsFleet(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	l := open(t, Options{Redis: client})
	eventually(t, "its first count", func() bool { return l.Stats().Nodes == 1 })
	within(t, 2*patient, "it reckons with itself alone", func() bool { return l.nodes() == 1 })
}
