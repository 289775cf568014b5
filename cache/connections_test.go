package cache

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox/redistest"
)

// wayTo is an address by which connections lead to another, as carry has their
// bytes go.
func wayTo(t *testing.T, to string, carry func(near, far net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			go carry(near, far)
		}
	}()
	return l.Addr().String()
}

// slowToOpen is a way to a server on which the first answer of each connection
// takes longer than a page may.
func slowToOpen(t *testing.T, to string) (address string) {
	t.Helper()
	return wayTo(t, to, func(near, far net.Conn) {
		defer near.Close()
		go func() { _, _ = io.Copy(far, near); far.Close() }()
		first := make([]byte, 1)
		if _, err := io.ReadFull(far, first); err != nil {
			return
		}
		time.Sleep(3 * redisBudget)
		if _, err := near.Write(first); err == nil {
			_, _ = io.Copy(near, far)
		}
	})
}

// Opening a connection takes longer than a page may. Pages come from Redis all
// the same: their requests open none.
func TestConnectionsAreOpenedAhead(t *testing.T) {
	server, direct := startRedis(t)
	client := redis.NewClient(redistest.Options(slowToOpen(t, server.Addr())).Simple())
	defer client.Close()
	c := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	c.redis.budget = redisBudget
	if n := c.redis.servers.only.open.Load(); n == 0 {
		t.Fatal("no connection is open when the cache is")
	}
	again := func(what string) {
		t.Helper()
		i := 0
		eventually(t, what, func() bool { // a busy machine may miss the budget now and then
			i++
			key := keyOf(what + fmt.Sprint(i))
			deposit(t, direct, key, "page", 0, time.Hour)
			return forward(t, c, key, brings("another")).Source == Redis
		})
	}
	again("a page from Redis")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	again("a page from Redis after its restart")
	closeCache(t, c) // before its client
}

// Where no connection is open, nobody waits for one.
func TestNobodyWaitsForAConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client := redis.NewClient(redistest.Options(l.Addr().String()).Simple())
	defer client.Close()
	c := open(t, Options{Redis: client, TTL: time.Hour})
	c.redis.budget = time.Hour
	began := time.Now()
	forward(t, c, keyOf("q"), brings("page"))
	if waited := time.Since(began); waited > time.Minute {
		t.Errorf("waited %s", waited)
	}
	closeCache(t, c)
}

// All that want a page at once get one, on as many connections as it takes.
func TestConnectionsGrowWithTheirUse(t *testing.T) {
	server, client := startRedis(t)
	c := open(t, Options{Redis: client, TTL: time.Hour})
	connections := c.redis.servers.only
	eventually(t, "the first are open", func() bool { return connections.open.Load() == leastOpen })
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	const requests = 40
	done := make(chan Source, requests)
	for i := range requests {
		go func() { done <- forward(t, c, keyOf(fmt.Sprint(i)), brings("page")).Source }()
	}
	eventually(t, "more are wanted", func() bool { return connections.target.Load() > leastOpen })
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	for range requests {
		<-done
	}
	eventually(t, "more are open", func() bool { return connections.open.Load() > leastOpen })
	if s := c.Stats(); s.RedisFailures != 0 {
		t.Errorf("%d calls failed", s.RedisFailures)
	}
}

// Of a Cluster each server has connections of its own. A page that has moved is
// none until it is known where it is.
func TestPagesOfACluster(t *testing.T) {
	servers, client := redistest.Cluster(t)
	options := Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}
	first, second := open(t, options), open(t, options)
	shares := func(what string) bool {
		forward(t, first, keyOf(what), brings("page"))
		stored(t, first)
		return forward(t, second, keyOf(what), brings("another")).Source == Redis
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
	if n := len(second.redis.servers.all); n != 3 {
		t.Errorf("connections to %d servers", n)
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
	if err := redistest.Client(t, servers[1]).Do(t.Context(), "CLUSTER", "BUMPEPOCH").Err(); err != nil { // so that its word counts most
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
