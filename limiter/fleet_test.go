package limiter_test

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
	. "listedge/limiter"
	"listedge/limiter/lease"
)

// Three nodes on a real Redis, in real time: well, stopped, killed, cut off, failed
// over and in a Cluster. A node without CPU time learns late, and then the test fails:
// nothing else runs meanwhile.

// flood has three nodes ask for every limit as fast as they can, and counts.
type flood struct {
	nodes   []*Limiter
	limits  []Policy
	allowed []atomic.Int64
	longest atomic.Int64 // wait in a Take
	began   time.Time
	stop    atomic.Bool
	all     sync.WaitGroup
}

// startFlood: gap is the pause of each of the askers between two requests.
func startFlood(t *testing.T, gap time.Duration, client func(node int) redis.UniversalClient, budget time.Duration) *flood {
	f := &flood{allowed: make([]atomic.Int64, len(simLimits))}
	for n := range 3 {
		f.nodes = append(f.nodes, open(t, Options{Redis: client(n), Budget: budget}))
	}
	for _, limit := range simLimits {
		f.limits = append(f.limits, limit.policy())
	}
	for n, node := range f.nodes {
		counted(t, node, 3)
		for i := range f.limits { // connections to every Redis node
			eventually(t, "an answer of Redis", func() bool {
				return take(node, node.Bucket(KeyBucket(fmt.Sprint("ws", i), fmt.Sprint("warm", n)), policy(t, 1_000, 15)), nil).Source == SourceRedis
			})
		}
	}
	f.began = time.Now()
	for _, node := range f.nodes {
		var buckets []*Bucket
		for i, p := range f.limits {
			buckets = append(buckets, node.Bucket(KeyBucket(fmt.Sprint("ws", i), "k"), p))
		}
		f.all.Go(func() {
			for !f.stop.Load() {
				for i, b := range buckets {
					began := time.Now()
					if take(node, b, nil).Allowed {
						f.allowed[i].Add(1)
					}
					f.longest.Store(max(f.longest.Load(), int64(time.Since(began))))
				}
				time.Sleep(gap) // the pace of a client
			}
		})
	}
	return f
}

// end stops the flood and checks that no limit was exceeded by more than what the
// rate brings during a reply, and bursts more bursts.
func (f *flood) end(t *testing.T, bursts float64) {
	t.Helper()
	f.stop.Store(true)
	f.all.Wait()
	span := time.Since(f.began).Seconds()
	for i, limit := range simLimits {
		due, got := float64(limit.burst)+limit.rate*span, float64(f.allowed[i].Load())
		t.Logf("%8.2f/s burst %4d: %6.0f admitted, %6.0f due in %.2f s", limit.rate, limit.burst, got, due, span)
		if most := due + limit.rate*DefaultBudget.Seconds() + bursts*float64(limit.burst) + 1; got > most {
			t.Errorf("%v/s, burst %d: %.0f admitted in %.3f s, at most %.0f", limit.rate, limit.burst, got, span, most)
		}
		if limit.rate < 10_000 && got < min(3, due) {
			t.Errorf("%v/s, burst %d: only %.0f admitted of %.0f", limit.rate, limit.burst, got, due)
		}
	}
}

func (f *flood) eventually(t *testing.T, what string, ok func(s Stats) bool) {
	t.Helper()
	eventually(t, what, func() bool {
		for _, node := range f.nodes {
			if !ok(node.Stats()) {
				return false
			}
		}
		return true
	})
}

// leased waits until every node holds tokens, and has gone on like that for a while:
// what follows befalls a fleet that runs.
func (f *flood) leased(t *testing.T) {
	t.Helper()
	f.eventually(t, "each node has leased", func(s Stats) bool { return s.Allowed[SourceLease] > 0 && s.TokensLeased > 0 })
	f.goesOn(t, 300)
}

// goesOn waits until each node has decided so many requests more of each limit.
func (f *flood) goesOn(t *testing.T, requests uint64) {
	t.Helper()
	for _, node := range f.nodes {
		decided := func() (n uint64) {
			s := node.Stats()
			for source := range s.Allowed {
				n += s.Allowed[source] + s.Refused[source]
			}
			return n / uint64(len(f.limits))
		}
		until := decided() + requests
		eventually(t, "the flood goes on", func() bool { return decided() >= until })
	}
}

func (f *flood) breakers(t *testing.T, open bool) {
	t.Helper()
	f.eventually(t, fmt.Sprint("the breakers are open: ", open), func(s Stats) bool { return s.BreakerOpen == open })
}

func one(client redis.UniversalClient) func(int) redis.UniversalClient {
	return func(int) redis.UniversalClient { return client }
}

func TestRedisKilledAndRestartedEmpty(t *testing.T) {
	server, client := startRedis(t)
	f := startFlood(t, time.Millisecond, one(client), 0)
	f.leased(t)
	must(server.Kill())
	f.breakers(t, true)
	f.goesOn(t, 300) // while Redis is away
	must(server.Restart(t.Context()))
	f.breakers(t, false)
	f.goesOn(t, 700) // in which a burst too many would be spent
	f.end(t, 1.1)
}

// A replica that was never promoted answers, and still cannot count.
func TestReadOnlyRedisCountsAsAway(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	l := open(t, Options{Redis: client, Budget: patient})
	counted(t, l, 1)
	key := smallKey(t, l)
	takes(t, l, key, 1, SourceRedis)
	must(client.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	takes(t, l, key, 1, SourceLocalFallback)
	eventually(t, "the breaker opens", func() bool {
		take(l, l.Bucket("another", policy(t, 1000, 15)), nil)
		return l.Stats().BreakerOpen
	})
	for range 2 { // no heartbeat closes it
		last := l.Stats().Failure
		eventually(t, "another heartbeat is refused", func() bool { return l.Stats().Failure != last })
	}
	if s := l.Stats(); !s.BreakerOpen || s.Failure == nil {
		t.Errorf("%+v", s)
	}
	must(client.ReplicaOf(t.Context(), "NO", "ONE").Err())
	eventually(t, "Redis' return", func() bool { return !l.Stats().BreakerOpen && l.Stats().Owing == 0 })
	eventually(t, "a decision of Redis", func() bool { return take(l, key, nil).Source == SourceRedis })
}

// startSentinel makes a master, a replica of it and a Sentinel that watches them.
func startSentinel(t *testing.T) (master *sandbox.Redis, client func(int) redis.UniversalClient) {
	t.Helper()
	master, replica := sandboxtest.Redis(t), sandboxtest.Redis(t)
	host, port, err := net.SplitHostPort(master.Addr())
	must(err)
	must(redistest.Client(t, replica).ReplicaOf(t.Context(), host, port).Err())
	sentinel := sandboxtest.Sentinel(t, "main", master.Addr(), 300*time.Millisecond)
	watcher := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr()})
	t.Cleanup(func() { _ = watcher.Close() })
	within(t, 15*time.Second, "the sentinel knows of the replica", func() bool {
		replicas, err := watcher.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok"
	})
	options := redistest.Options()
	options.MasterName, options.Addrs = "main", []string{sentinel.Addr()}
	return master, func(int) redis.UniversalClient {
		client := redis.NewUniversalClient(options)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
}

func TestSentinelFailsOver(t *testing.T) {
	master, client := startSentinel(t)
	f := startFlood(t, time.Millisecond, client, 0)
	f.leased(t)
	must(master.Kill())
	f.breakers(t, true)
	f.breakers(t, false)
	before := f.nodes[0].Stats().RedisCalls
	f.goesOn(t, 500) // in which a burst too many would be spent
	if f.nodes[0].Stats().RedisCalls == before {
		t.Error("no call to the new master")
	}
	// A burst may be spent by nodes that decide alone, and one more where the replica
	// had not got the master's last writes.
	f.end(t, 2.1)
}

// A Redis that has not seen the script, and one that has forgotten it, is sent it.
func TestScriptIsLoadedWhereItIsMissing(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	l := open(t, Options{Redis: client, Budget: patient})
	counted(t, l, 1)
	b := smallKey(t, l)
	takes(t, l, b, 2, SourceRedis)
	must(client.ScriptFlush(t.Context()).Err())
	takes(t, l, b, 2, SourceRedis)
	if s := l.Stats(); s.RedisErrors != 0 || left(l, b) != 11 {
		t.Fatalf("%+v", s)
	}
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	a, b := New(Options{Redis: client, NodeID: "a"}), open(t, Options{Redis: client, NodeID: "b"})
	counted(t, a, 2)
	counted(t, b, 2)
	closeLimiter(t, a)
	counted(t, b, 1) // the one that left is not silent
	for id, age := range map[string]time.Duration{"crashed": 30 * time.Second, "long gone": 61 * time.Second, "of the future": -30 * time.Second} {
		must(client.ZAdd(t.Context(), members, redis.Z{Score: float64(time.Now().Add(-age).UnixMilli()/10<<14 + 5), Member: id}).Err())
	}
	eventually(t, "two of five are silent", func() bool { // the clock was set back after the last heartbeat of one
		f := fleetOf(b)
		return f.Nodes == 3 && f.Silent == 400_000
	})
	if n := client.ZCard(t.Context(), members).Val(); n != 3 {
		t.Errorf("%d members", n)
	}
	for _, l := range []*Limiter{open(t, Options{Redis: client, NodeID: "crashed"}), open(t, Options{Redis: client, NodeID: "of the future"}), b} {
		counted(t, l, 3)
	}
}

// A heartbeat that Redis executes when its node has long given it up, and cannot be reached, does not
// report the node present.
func TestALateHeartbeatIsVoid(t *testing.T) {
	t.Parallel()
	server, client := startRedis(t)
	cut := redistest.Client(t, server)
	l := open(t, Options{Redis: cut, NodeID: "cut"})
	counted(t, l, 1)
	must(server.Freeze())
	frozen := time.Now()
	eventually(t, "a heartbeat has no answer", func() bool { return l.Stats().Failure != nil })
	must(cut.Close())
	time.Sleep(timeout) // which makes it void
	must(server.Thaw())
	for range 20 { // it has come before these
		beat := time.UnixMilli(int64(must1(client.ZScore(t.Context(), members, "cut").Result())) >> 14 * 10)
		if beat.After(frozen.Add(timeout)) {
			t.Fatalf("%v after Redis froze, the node is present", beat.Sub(frozen))
		}
	}
}

// Redis comes back empty, and is gone again before all have said that they are there.
func TestNodesAreRememberedThroughAnEmptyRedis(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, v *virtual) {
		v.count(3)
		boottimetest.Pass(3 * time.Second)
		v.count(0)
		boottimetest.Pass(3 * heartbeats / 2) // a heartbeat or two
		v.mood.Store(int32(hung))
		boottimetest.Pass(10 * time.Second)
		if f := fleetOf(l); f.Nodes != 3 || f.Silent != 666_667 || f.Cold {
			t.Fatalf("%+v", f)
		}
	})
}

// A node that has debts goes by what was counted before, also when Redis comes back empty.
func TestANodeWithDebtsRemembersItsFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVirtual()
		l := fleet(t, v, 3)[0]
		v.mood.Store(int32(hung))
		boottimetest.Pass(3 * time.Second)
		var owe []*Bucket
		for i := range 3_000 { // which are debited in about five seconds
			owe = append(owe, l.Bucket(fmt.Sprint(i), policy(t, .001, 15)))
			takes(t, l, owe[i], 1, SourceLocalFallback)
		}
		v.mu.Lock()
		v.do("del", members)
		v.mu.Unlock()
		v.mood.Store(int32(well))
		boottimetest.Pass(3 * time.Second)
		if s := l.Stats(); s.Owing == 0 {
			t.Fatalf("it has no debts: %+v", s)
		}
		for range 20 {
			if f := fleetOf(l); f.Nodes != 3 || f.Cold {
				t.Fatalf("%+v", f)
			}
			boottimetest.Pass(heartbeats / 2)
		}
		if s := l.Stats(); s.Owing != 0 {
			t.Fatalf("it has debts: %+v", s)
		}
	})
}

// A new node withholds what the nodes that are cut off use: all of the rate, if these are all of the fleet that they know.
func TestANewNodeWithholdsWhatSilentNodesUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVirtual()
		_, ways := fleetOn(t, v, 3, 0)
		for _, w := range ways {
			w.cut.Store(true)
		}
		boottimetest.Pass(2 * time.Second)
		l := newLimiter(Options{}, v)
		defer closeLimiter(t, l)
		boottimetest.Pass(heartbeats / 2)
		if f := fleetOf(l); !f.Cold || f.Silent != lease.Token {
			t.Fatalf("%+v", f)
		}
	})
}

func TestKeysOfARequestShareAShard(t *testing.T) {
	if a, b := KeyBucket("w", "k"), WorkspaceBucket("w"); a != "{w}:b:k" || b != "{w}:b" {
		t.Errorf("%s and %s", a, b)
	}
}
