package limiter_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/sandbox/redistest"
	. "listedge/limiter"
)

// Limits on a Redis Cluster: each master is a shard of its own.

// One master hangs: requests for its buckets wait once, and are then decided without
// it. Those for the buckets of other masters notice nothing.
func TestAHungShardCostsOthersNothing(t *testing.T) {
	servers, client := startCluster(t)
	l := open(t, Options{Redis: client, Budget: patient})
	counted(t, l, 1)
	var hanging, healthy []*Bucket
	for i := range 60 {
		b := l.Bucket(KeyBucket(fmt.Sprint("w", i), "k"), policy(t, 1_000_000, 15))
		takes(t, l, b, 1, SourceRedis)
		if must1(client.MasterForKey(t.Context(), b.Key())).Options().Addr == servers[0].Addr() {
			hanging = append(hanging, b)
		} else {
			healthy = append(healthy, b)
		}
	}
	if len(hanging) == 0 || len(healthy) == 0 {
		t.Fatal("all buckets are on one master")
	}
	must(servers[0].Freeze())
	var stop atomic.Bool
	var requests sync.WaitGroup
	count := func(of []*Bucket, all, fallback *atomic.Int64) {
		requests.Go(func() {
			for i := 0; !stop.Load(); i++ {
				if all.Add(1); take(l, of[i%len(of)], nil).Source == SourceLocalFallback {
					fallback.Add(1)
				}
				time.Sleep(time.Millisecond) // the pace of a client
			}
		})
	}
	var askedHanging, fallbackHanging, askedHealthy, fallbackHealthy atomic.Int64
	for range 4 {
		count(hanging, &askedHanging, &fallbackHanging)
		count(healthy, &askedHealthy, &fallbackHealthy)
	}
	eventually(t, "many requests without the shard that hangs", func() bool { return fallbackHanging.Load() > 500 && askedHealthy.Load() > 500 })
	stop.Store(true)
	requests.Wait()
	t.Logf("decided without Redis: %d of %d on the shard that hangs, %d of %d on others",
		fallbackHanging.Load(), askedHanging.Load(), fallbackHealthy.Load(), askedHealthy.Load())
	if fallbackHealthy.Load() > askedHealthy.Load()/50 {
		t.Error("more than one in fifty of those on healthy shards")
	}
	if s := l.Stats(); !s.BreakerOpen || s.Failure == nil {
		t.Errorf("nothing says that a shard is down: %+v", s)
	}
	must(servers[0].Thaw())
	eventually(t, "the shard is back", func() bool { s := l.Stats(); return !s.BreakerOpen && s.Owing == 0 })
	eventually(t, "a decision of Redis", func() bool { return take(l, hanging[0], nil).Source == SourceRedis })
}

// lossy is a connection that breaks when the answer to a call of a bucket is there.
type lossy struct {
	net.Conn
	bucket string
	lose   *atomic.Bool
	sent   bool
}

func (c *lossy) Write(p []byte) (int, error) {
	c.sent = c.sent || bytes.Contains(p, []byte(c.bucket))
	return c.Conn.Write(p)
}

func (c *lossy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.sent && err == nil && c.lose.CompareAndSwap(true, false) {
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

// A connection that breaks has carried out what was sent, or not. Nothing is sent
// again, or a token would be given back twice.
func TestACallIsCarriedOutOnceAtMost(t *testing.T) {
	t.Parallel()
	servers, _ := startCluster(t)
	options := redistest.Options(servers[0].Addr(), servers[1].Addr(), servers[2].Addr())
	name, lose := KeyBucket("broken", "k"), new(atomic.Bool)
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &lossy{Conn: conn, bucket: name, lose: lose}, err
	}
	client := redis.NewClusterClient(options.Cluster())
	t.Cleanup(func() { _ = client.Close() })
	l := open(t, Options{Redis: client, Budget: patient})
	counted(t, l, 1)
	key := l.Bucket(name, policy(t, 0.001, 15))
	takes(t, l, key, 4, SourceRedis)
	eventually(t, "the nodes of its shard are counted", func() bool { return !l.Fleet(name).Cold })
	takes(t, l, key, 1, SourceRedis)
	for range 3 {
		lose.Store(true)
		key.Refund()
		eventually(t, "the answer is lost", func() bool { return !lose.Load() })
		eventually(t, "the bucket is asked again", func() bool { return !key.Calls() })
		takes(t, l, key, 1, SourceRedis)
	}
	if n := left(l, key); n != 10 {
		t.Errorf("%d of 15 left after 5 were taken, and 3 given back and taken again", n)
	}
}

// One of three nodes loses one of two masters, or all that this answers: the others
// withhold its part of the buckets there, and of no other.
func TestOneNodeLosesOneShard(t *testing.T) {
	for name, c := range map[string]struct {
		deaf  bool          // it loses the answers only
		quiet time.Duration // for so long the node has no requests
	}{"messages": {}, "answers": {deaf: true}, "answers, which it notices late": {true, 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { loseAShard(t, c.deaf, c.quiet) })
		})
	}
}

func loseAShard(t *testing.T, deaf bool, quiet time.Duration) {
	nodes, ways := fleetOn(t, newVirtual(), 3, 2) // the nodes count one another at both, before they have a bucket there
	var buckets [2][]*Bucket
	for _, l := range nodes {
		for shard, key := range []string{"first", "second"} {
			buckets[shard] = append(buckets[shard], l.Bucket(key, policy(t, 100, 100)))
		}
	}
	ways[0].cut.Store(!deaf)
	ways[0].deaf.Store(deaf)
	var admitted [2]int
	byLost := 0 // of those
	began := time.Now()
	for time.Since(began) < 20*time.Second {
		for shard := range admitted {
			for i, l := range nodes {
				if i == 0 && time.Since(began) < quiet {
					continue
				}
				if d := take(l, buckets[shard][i], nil); d.Allowed {
					admitted[shard]++
					if shard == 1 && i == 0 {
						byLost++
					}
				} else if shard == 0 && d.Source == SourceLocalFallback {
					t.Fatalf("the healthy shard: %+v", d)
				}
			}
		}
		boottimetest.Pass(5 * time.Millisecond)
	}
	t.Logf("%d admitted on the healthy shard, %d on the other, of 2100; of these %d by the node that lost it", admitted[0], admitted[1], byLost)
	if byLost < 400 {
		t.Error("a third of the rate is its part")
	}
	if admitted[0] < 2060 || admitted[0] > 2101 || admitted[1] < 1800 || admitted[1] > 2140 {
		t.Error("2100 are due, and a part of a burst more where a node is cut off")
	}
	if s := nodes[0].Stats(); !s.BreakerOpen {
		t.Errorf("%+v", s)
	}
}

func TestCluster(t *testing.T) {
	_, client := startCluster(t)
	f := startFlood(t, time.Millisecond, one(client), patient)
	f.goesOn(t, 500)
	f.end(t, 0)

	// Both buckets of a request travel to their master in one pipeline.
	l := open(t, Options{Redis: client, Budget: patient})
	counted(t, l, 4)
	var keys, workspaces []*Bucket
	for i := range 60 {
		workspace := fmt.Sprint("w", i)
		keys = append(keys, l.Bucket(KeyBucket(workspace, "k"), policy(t, 0.001, 15)))
		workspaces = append(workspaces, l.Bucket(WorkspaceBucket(workspace), policy(t, 0.001, 15)))
		if d := take(l, keys[i], workspaces[i]); !d.Allowed || d.Source != SourceRedis || d.Key.Remaining != 14 || d.Workspace.Remaining != 14 {
			t.Fatalf("%+v", d)
		}
	}
	if s := l.Stats(); s.RedisTrips != 60 || s.RedisCalls != 120 {
		t.Errorf("%d trips with %d calls for 60 requests of two buckets", s.RedisTrips, s.RedisCalls)
	}
}
