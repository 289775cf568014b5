package cache_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// Entries come from Redis even if opening a connection takes longer than the budget: the
// connection that a request has given up on is used by the next one.
func TestConnectionsThatOpenSlowlyAreUsed(t *testing.T) {
	server, direct := startRedis(t)
	relay := sandboxtest.StartRelay(t, server.Addr())
	relay.DelayPiecesWith("hello", 3*redisBudget) // as long as a handshake of TLS takes
	client := redis.NewClient(redistest.Options(relay.Addr()).Simple())
	defer client.Close()
	c := open(t, cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	c.SetRedisBudgets(redisBudget, patient)
	if n := client.PoolStats().IdleConns; n == 0 {
		t.Fatal("no connection is open when the cache is")
	}
	again := func(what string) {
		t.Helper()
		i := 0
		eventually(t, what, func() bool { // a busy machine may miss the budget now and then
			i++
			q := queryOf(what + fmt.Sprint(i))
			deposit(t, direct, q, "page", 0, time.Hour)
			return forward(t, c, q, brings("another")).Source == cache.Redis
		})
	}
	again("a page from Redis")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	again("a page from Redis after its restart")
	closeCache(t, c) // before its client
}

// The client finds the server of a Cluster that has an entry, also after its slot has moved.
func TestEntriesOfACluster(t *testing.T) {
	servers, client := redistest.Cluster(t)
	options := cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}
	first, second := open(t, options), open(t, options)
	shares := func(what string) bool {
		forward(t, first, queryOf(what), brings("page"))
		first.WaitStored()
		return forward(t, second, queryOf(what), brings("another")).Source == cache.Redis
	}
	for i := range 30 {
		if !shares(fmt.Sprint("q", i)) {
			t.Fatalf("page %d did not come from Redis", i)
		}
	}
	for i, server := range servers {
		if n, err := redistest.Client(t, server).DBSize(t.Context()).Result(); err != nil || n == 0 {
			t.Errorf("server %d has %d pages, %v", i, n, err)
		}
	}

	// All slots of the first go to the second.
	ids := make([]string, len(servers))
	for i, server := range servers {
		ids[i] = redistest.Client(t, server).Do(t.Context(), "CLUSTER", "MYID").String()
		ids[i] = ids[i][strings.LastIndex(ids[i], " ")+1:]
	}
	emptied := redistest.Client(t, servers[0])
	if err := emptied.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := redistest.Client(t, servers[1]).Do(t.Context(), "CLUSTER", "BUMPEPOCH").Err(); err != nil { // so that the other servers believe it
		t.Fatal(err)
	}
	for _, server := range []int{1, 2, 0} {
		c := redistest.Client(t, servers[server])
		if _, err := c.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for slot := range 16384 / 3 {
				pipe.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "NODE", ids[1])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	i := 0
	inRow := 0
	eventually(t, "thirty pages in a row by way of Redis", func() bool {
		i++
		if inRow++; !shares(fmt.Sprint("moved", i)) {
			inRow = 0
		}
		return inRow == 30
	})
	if s := second.Stats(); s.RedisFailures != 0 {
		t.Errorf("%d calls failed", s.RedisFailures)
	}
}

// opaque is a connection whose end the client cannot see before it uses it, as with TLS.
type opaque struct{ net.Conn }

// A restart of Redis may end many connections. Entries come from Redis as soon as it
// answers again, because one call tries all of them.
func TestConnectionsThatHaveEnded(t *testing.T) {
	server, direct := startRedis(t)
	o := redistest.Options(server.Addr())
	const many = 400 // more than probes of a breaker in a minute
	o.PoolSize = many + 10
	o.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return opaque{conn}, nil
	}
	client := redis.NewClient(o.Simple())
	defer client.Close()
	c := open(t, cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range many {
		all.Go(func() { _ = client.Get(t.Context(), "some").Err() })
	}
	eventually(t, "many are open", func() bool { return client.PoolStats().TotalConns >= many })
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	q := queryOf("q")
	eventually(t, "an entry comes from Redis", func() bool {
		deposit(t, direct, q, "page", 0, time.Hour)
		_, err := c.Stored(q)
		return err == nil
	})
}
