package limiter

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// Three nodes on a real Redis, in real time: well, stopped, killed, failed over
// and in a Cluster. Nothing else runs meanwhile: what a node learns late for want
// of a processor counts against the promise.

// flood has three nodes ask for every limit as fast as they can, and counts.
type flood struct {
	nodes   []*Limiter
	limits  []Policy
	allowed []atomic.Int64
	longest atomic.Int64 // wait in a Take, of the calm requests
	began   time.Time
	apart   time.Duration // for which one part of the fleet is allowed to know of Redis' return, and another not
	stop    atomic.Bool
	all     sync.WaitGroup
}

// warm waits until the nodes know of one another and have connections to every
// Redis node: a cold one decides by what it knows, which is nothing.
func (f *flood) warm(t *testing.T) {
	t.Helper()
	for _, node := range f.nodes {
		counted(t, node, 3)
	}
	for n, node := range f.nodes {
		for i := range f.limits {
			eventually(t, "an answer of Redis", func() bool {
				return node.Take(node.Bucket(KeyBucket(fmt.Sprint("ws", i), fmt.Sprint("warm", n)), policy(t, 1_000, 15)), nil).Source == SourceRedis
			})
		}
	}
	f.eventually(t, "the breakers closed", func(s Stats) bool { return s.Breaker == "closed" })
}

// startFlood: gap is the pause of each of the askers between two requests.
func startFlood(t *testing.T, gap time.Duration, client func() redis.UniversalClient, budget time.Duration) *flood {
	f := &flood{}
	for _, limit := range simLimits {
		f.limits = append(f.limits, policy(t, limit.rate, limit.burst))
	}
	f.allowed = make([]atomic.Int64, len(f.limits))
	for range 3 {
		f.nodes = append(f.nodes, open(t, Options{Redis: client(), Budget: budget}))
	}
	f.warm(t)
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
					if node.Take(b, nil).Allowed {
						f.allowed[i].Add(1)
					}
					f.longest.Store(max(f.longest.Load(), int64(time.Since(began))))
				}
				time.Sleep(gap)
			}
		})
	}
	return f
}

// end stops the flood and checks that no limit was exceeded: by more than what
// the rate brings during a reply, and bursts more bursts. What nodes admitted
// alone is in it. How much of what is due is admitted is the simulation's to
// show; here it must only not be nothing.
func (f *flood) end(t *testing.T, bursts float64) {
	t.Helper()
	f.stop.Store(true)
	f.all.Wait()
	span := time.Since(f.began).Seconds()
	offLedger := uint64(0)
	for _, node := range f.nodes {
		offLedger += node.Stats().OffLedger
	}
	for i, p := range f.limits {
		due := float64(p.Burst) + p.Rate*span
		got := float64(f.allowed[i].Load())
		t.Logf("%8.2f/s burst %4d: %6.0f admitted, %6.0f due in %.2f s, %d off the ledger in all", p.Rate, p.Burst, got, due, span, offLedger)
		if most := due + p.Rate*(DefaultBudget+f.apart).Seconds() + bursts*float64(p.Burst); got > most {
			t.Errorf("%v/s, burst %d: %.0f admitted in %.3f s, at most %.0f", p.Rate, p.Burst, got, span, most)
		}
		if p.Rate < 10_000 && got < min(3, due) { // a token a node: that is its part of the smallest
			t.Errorf("%v/s, burst %d: only %.0f admitted of %.0f", p.Rate, p.Burst, got, due)
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

// leased waits until every node holds tokens that may be lost, and has gone on
// like that for a while: what follows befalls a fleet that runs.
func (f *flood) leased(t *testing.T) {
	t.Helper()
	f.eventually(t, "each node has leased", func(s Stats) bool { return s.Allowed.Lease > 0 && s.LeasedHeld > 0 })
	time.Sleep(300 * time.Millisecond)
}

func TestThreeNodesInAFlood(t *testing.T) {
	_, client := startRedis(t)
	f := startFlood(t, 50*time.Microsecond, func() redis.UniversalClient { return client }, patient)
	time.Sleep(time.Second)
	f.end(t, 0)
	s := f.nodes[0].Stats()
	if s.Allowed.Lease == 0 || s.OffLedger != 0 || s.TokensLeased == 0 {
		t.Errorf("%+v", s)
	}
}

// Nobody waits longer than the budget (and what a busy machine adds), and the
// nodes' parts add up to the limit.
func TestRedisStoppedForThreeSeconds(t *testing.T) {
	server, client := startRedis(t)
	f := startFlood(t, time.Millisecond, func() redis.UniversalClient { return client }, 0)
	f.leased(t)
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	f.eventually(t, "the breakers open", func(s Stats) bool { return s.Breaker != "closed" })
	f.longest.Store(0)
	time.Sleep(3 * time.Second)
	if longest := time.Duration(f.longest.Load()); longest > DefaultBudget+100*time.Millisecond {
		t.Errorf("a Take took %v while the breaker was open", longest)
	}
	for _, node := range f.nodes {
		if s := node.Stats(); s.OffLedger == 0 || s.Degraded < 2*time.Second {
			t.Errorf("%+v", s)
		}
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	f.eventually(t, "the breakers close", func(s Stats) bool { return s.Breaker == "closed" })
	time.Sleep(500 * time.Millisecond) // in which a burst too many would be spent
	f.end(t, .1)
	f.eventually(t, "the debts are paid", func(s Stats) bool { return s.Owing == 0 && s.DebtSettled > 0 })
}

func TestRedisKilledAndRestartedEmpty(t *testing.T) {
	server, client := startRedis(t)
	f := startFlood(t, time.Millisecond, func() redis.UniversalClient { return client }, 0)
	f.leased(t)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	f.eventually(t, "the breakers open", func(s Stats) bool { return s.Breaker != "closed" })
	time.Sleep(300 * time.Millisecond) // Redis is away
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.eventually(t, "the breakers close", func(s Stats) bool { return s.Breaker == "closed" })
	time.Sleep(700 * time.Millisecond) // in which a burst too many would be spent
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
	if err := client.ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	takes(t, l, key, 3, SourceLocalFallback)
	eventually(t, "the breaker opens", func() bool { return l.Stats().Breaker == "open" })
	if err := client.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Redis' return", func() bool { return l.Stats().Breaker == "closed" && l.Stats().Owing == 0 })
	within(t, 2*recovery, "nobody decides alone any more", func() bool { return l.now() >= key.lease.ill.Load() })
	if d := l.Take(key, nil); d.Source != SourceRedis || key.Level().Remaining != 10 {
		t.Fatalf("%+v", d)
	}
}

// startSentinel makes a master, a replica of it and a Sentinel that watches them.
func startSentinel(t *testing.T) (master, replica *sandbox.Redis, watcher *redis.SentinelClient, client func() redis.UniversalClient) {
	t.Helper()
	master, replica = sandboxtest.Redis(t), sandboxtest.Redis(t)
	host, port := splitAddr(t, master.Addr())
	if err := redistest.Client(t, replica).ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	sentinel, err := sandbox.StartSentinel(t.Context(), filepath.Join(sandboxtest.Dir(t), "sentinel"), "main", master.Addr(), 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sentinel.Stop() })
	watcher = redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr()})
	t.Cleanup(func() { _ = watcher.Close() })
	within(t, 15*time.Second, "the sentinel knows of the replica", func() bool {
		replicas, err := watcher.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok"
	})
	options := redistest.Options()
	options.MasterName, options.Addrs = "main", []string{sentinel.Addr()}
	return master, replica, watcher, func() redis.UniversalClient {
		client := redis.NewUniversalClient(options)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
}

func TestSentinelFailsOver(t *testing.T) {
	master, _, _, client := startSentinel(t)
	f := startFlood(t, time.Millisecond, client, 0)
	f.leased(t)
	if err := master.Kill(); err != nil {
		t.Fatal(err)
	}
	f.eventually(t, "the breakers open", func(s Stats) bool { return s.Breaker != "closed" })
	within(t, 20*time.Second, "the replica has taken over", func() bool {
		for _, node := range f.nodes {
			if node.Stats().Breaker != "closed" {
				return false
			}
		}
		return true
	})
	before := f.nodes[0].Stats().RedisCalls
	time.Sleep(500 * time.Millisecond) // in which a burst too many would be spent
	if f.nodes[0].Stats().RedisCalls == before {
		t.Error("no call to the new master")
	}
	// A burst may be spent by nodes that decide alone, and one more where the
	// replica had not got the master's last writes.
	f.end(t, 2.1)
}

var startCluster = redistest.Cluster

func TestCluster(t *testing.T) {
	servers, client := startCluster(t)
	f := startFlood(t, time.Millisecond, func() redis.UniversalClient { return client }, patient)
	time.Sleep(500 * time.Millisecond)
	f.end(t, 0)

	// Both buckets of a request travel to their master in one pipeline, and
	// each master has its own dispatcher and breaker.
	l := open(t, Options{Redis: client, Budget: patient})
	counted(t, l, 4)
	var keys, workspaces []*Bucket
	for i := range 60 {
		workspace := fmt.Sprint("w", i)
		keys = append(keys, l.Bucket(KeyBucket(workspace, "k"), policy(t, 0.001, 15)))
		workspaces = append(workspaces, l.Bucket(WorkspaceBucket(workspace), policy(t, 0.001, 15)))
		if d := l.Take(keys[i], workspaces[i]); !d.Allowed || d.Source != SourceRedis || keys[i].Level().Remaining != 14 || workspaces[i].Level().Remaining != 14 {
			t.Fatalf("%+v", d)
		}
	}
	if s := l.Stats(); s.RedisTrips != 60 || s.RedisCalls != 120 {
		t.Errorf("%d trips with %d calls for 60 requests of two buckets", s.RedisTrips, s.RedisCalls)
	}
	if n := len(l.cluster.all()); n != 3 {
		t.Fatalf("%d dispatchers", n)
	}
	if err := servers[0].Kill(); err != nil {
		t.Fatal(err)
	}
	alone := func() (n int) {
		for i := range keys {
			if d := l.Take(keys[i], workspaces[i]); d.Source == SourceLocalFallback {
				n++
			} else if d.Source != SourceRedis {
				t.Fatalf("%+v", d)
			}
		}
		return n
	}
	alone()
	eventually(t, "the breaker of one master opens", func() bool { return l.Stats().Breaker == "open" })
	if n := alone(); n == 0 || n > 40 {
		t.Fatalf("%d of 60 buckets without their master", n)
	}
}

// migration is a bucket whose slot is to move from one master to another.
type migration struct {
	key        *Bucket
	slot       int
	from, to   *redis.Client
	fromID, id string // of the masters
}

func newMigration(t *testing.T, l *Limiter, servers []*sandbox.Redis, client *redis.ClusterClient) migration {
	t.Helper()
	m := migration{key: l.Bucket(KeyBucket("moving", "k"), policy(t, 0.001, 15))}
	m.slot = int(client.ClusterKeySlot(t.Context(), m.key.key).Val())
	owner, err := client.MasterForKey(t.Context(), m.key.key)
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		if server.Addr() == owner.Options().Addr {
			m.from = redistest.Client(t, server)
		} else {
			m.to = redistest.Client(t, server)
		}
	}
	m.fromID, m.id = m.from.ClusterMyID(t.Context()).Val(), m.to.ClusterMyID(t.Context()).Val()
	return m
}

func (m *migration) setSlot(t *testing.T, at *redis.Client, how, id string) {
	t.Helper()
	if err := at.Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, how, id).Err(); err != nil {
		t.Fatal(err)
	}
}

// carry brings the bucket over, as a resharding does.
func (m *migration) carry(t *testing.T) {
	t.Helper()
	value, err := m.from.Dump(t.Context(), m.key.key).Result()
	if err != nil {
		t.Fatal(err)
	}
	pipe := m.to.Pipeline()
	pipe.Do(t.Context(), "ASKING")
	pipe.Restore(t.Context(), m.key.key, 0, value)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.from.Del(t.Context(), m.key.key).Err(); err != nil {
		t.Fatal(err)
	}
}

// A slot that moves to another master: asked for there while it is on its way
// (ASK), found there afterwards (MOVED), no token charged twice, and no failure.
func TestClusterSlotMoves(t *testing.T) {
	t.Parallel()
	servers, client := startCluster(t)
	l := open(t, Options{Redis: client, Budget: patient})
	m := newMigration(t, l, servers, client)
	next := func(what string, left int64) {
		t.Helper()
		d := l.Take(m.key, nil)
		if s := l.Stats(); !d.Allowed || d.Source != SourceRedis || m.key.Level().Remaining != left || s.RedisErrors+s.RedisTimeouts != 0 || s.Breaker != "closed" {
			t.Fatalf("%s: %+v, %+v left, %+v", what, d, m.key.Level(), s)
		}
	}
	next("at rest", 14)
	m.setSlot(t, m.to, "IMPORTING", m.fromID)
	m.setSlot(t, m.from, "MIGRATING", m.id)
	next("the slot is moving, the bucket still there", 13)
	m.carry(t)
	before := l.Stats().RedisTrips
	next("the bucket has gone ahead", 12)
	if trips := l.Stats().RedisTrips - before; trips != 2 {
		t.Fatalf("%d trips: asked there, and elsewhere, were expected", trips)
	}
	if n := m.from.Exists(t.Context(), m.key.key).Val(); n != 0 {
		t.Fatal("a second bucket where the first was")
	}
	m.setSlot(t, m.to, "NODE", m.id)
	m.setSlot(t, m.from, "NODE", m.id)
	next("moved", 11)
	before = l.Stats().RedisTrips
	next("and known to be", 10)
	if trips := l.Stats().RedisTrips - before; trips != 1 {
		t.Fatalf("%d trips to a bucket whose place is known", trips)
	}
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	a, b := New(Options{Redis: client, NodeID: "a"}), open(t, Options{Redis: client, NodeID: "b"})
	eventually(t, "both are counted", func() bool { return a.Stats().Nodes == 2 && b.Stats().Nodes == 2 })
	if err := a.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	within(t, 2*patient, "the one that left is not", func() bool { return b.Stats().Nodes == 1 })
	if err := client.ZAdd(t.Context(), fleetKey, redis.Z{Score: float64(time.Now().UnixMicro() - 1), Member: "crashed"}).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the crashed one is forgotten", func() bool { return client.ZCard(t.Context(), fleetKey).Val() == 1 })
}

// Redis comes back empty, and is gone again before all have said that they are there.
func TestNodesAreRememberedThroughAnEmptyRedis(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	a, b := open(t, Options{Redis: client, NodeID: "a"}), open(t, Options{Redis: client, NodeID: "b"})
	eventually(t, "both are counted", func() bool { return a.Stats().Nodes == 2 && b.Stats().Nodes == 2 })
	f := &fleet{client: client, id: "c"}
	f.beat(beatLife)
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	f.beat(beatLife)
	if n := f.size.Load(); n != 3 {
		t.Fatalf("%d nodes; there are three", n)
	}
}

// Handles are made for keys that exist; those that nobody takes from cost Redis nothing.
func TestMadeUpKeysCostNothing(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	l := open(t, Options{Redis: client})
	p := policy(t, 50, 100)
	for i := range madeUpKeys {
		l.Bucket("rl:{made up}:k:"+string(rune(i)), p)
	}
	if s := l.Stats(); s.RedisCalls != 0 || s.Leases != 0 || s.Owing != 0 {
		t.Fatalf("%+v", s)
	}
}
