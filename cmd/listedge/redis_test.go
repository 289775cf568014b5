package main

import (
	"context"
	"testing"

	"listedge/internal/sandbox/redistest"
)

// Calls are timed by what they are for, one call a command or pipeline, and also those
// that fail.
func TestCallsToRedisAreTimed(t *testing.T) {
	server, _ := redistest.Start(t)
	clients, err := openRedis(server.URL())
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
	want := map[string]uint64{"pages": 1, "limits": pipelines + 1}
	const connecting = 8 // calls that the client makes on new connections
	for _, c := range clients.calls() {
		if n := c.Took.Count; n < want[c.Purpose] || n > want[c.Purpose]+connecting || c.Took.Sum <= 0 {
			t.Errorf("%s: %d calls took %v, want %d", c.Purpose, c.Took.Count, c.Took.Sum, want[c.Purpose])
		}
		delete(want, c.Purpose)
	}
	if len(want) > 0 {
		t.Errorf("not timed: %v", want)
	}
	if calls := (redisClients{}).calls(); calls != nil {
		t.Errorf("without Redis: %v", calls)
	}
}
