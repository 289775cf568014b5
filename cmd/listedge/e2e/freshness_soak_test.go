//go:build soak

package e2e

import (
	"flag"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/redistest"
)

// The soak: faults in a random order, which a seed decides, until the time is over.
//
//	make soak SOAK=10m SEED=7
var (
	soakFor  = flag.Duration("soak", 10*time.Minute, "how long to run")
	soakSeed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "decides the order")
)

// largeFaults are those that take long.
var largeFaults = []fault{
	foreignTransaction(2_000_000),
	{name: "transactions of 600,000 rows", forms: []form{withManyRows(600_000)}, happens: func(t *testing.T, o *oracle) { o.judges(t, 20*during) }},
}

// TestSoakFreshnessOfLargeTransactions prints how near to the bound they come.
func TestSoakFreshnessOfLargeTransactions(t *testing.T) {
	newOracle(t, *soakSeed, startFleet(t, 2)).playAll(t, largeFaults)
}

// TestSoakFreshnessInACluster moves the slot of the log of changes from master to
// master.
func TestSoakFreshnessInACluster(t *testing.T) {
	servers, client := redistest.Cluster(t)
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.Addr())
	}
	f := fleetOf(t, "--redis-url", "redis://"+strings.Join(addresses, ","))
	f.redis = nil
	f.startNodes(t, 3)
	slot := client.ClusterKeySlot(t.Context(), "listedge:{changes}").Val()
	moves := fault{name: "the log's slot is moved", happens: func(t *testing.T, o *oracle) {
		moved := 0
		for i := range 10 {
			moved += moveSlot(t, servers, slot, i%len(servers))
			o.judges(t, during)
		}
		if t.Logf("%d keys moved", moved); moved < 10 {
			t.Error("too few")
		}
	}}
	newOracle(t, *soakSeed, f).playAll(t, []fault{noFault, moves})
}

// moveSlot brings a slot and its keys to a master, as a resharding does.
func moveSlot(t *testing.T, servers []*sandbox.Redis, slot int64, target int) (keysMoved int) {
	t.Helper()
	to := redistest.Client(t, servers[target])
	id := to.ClusterMyID(t.Context()).Val()
	set := func(at *redis.Client, how, id string) {
		t.Helper()
		must(at.Do(t.Context(), "CLUSTER", "SETSLOT", slot, how, id).Err())
	}
	host, port, _ := net.SplitHostPort(servers[target].Addr())
	for _, s := range servers {
		from := redistest.Client(t, s)
		if mine, err := from.Do(t.Context(), "CLUSTER", "COUNTKEYSINSLOT", slot).Int64(); s == servers[target] || err != nil || mine == 0 {
			continue
		}
		set(to, "IMPORTING", from.ClusterMyID(t.Context()).Val())
		set(from, "MIGRATING", id)
		for {
			keys := from.ClusterGetKeysInSlot(t.Context(), int(slot), 100).Val()
			if len(keys) == 0 {
				break
			}
			keysMoved += len(keys)
			args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
			for _, k := range keys {
				args = append(args, k)
			}
			must(from.Do(t.Context(), args...).Err())
		}
	}
	set(to, "NODE", id)
	for _, s := range servers {
		set(redistest.Client(t, s), "NODE", id)
	}
	return keysMoved
}

func TestSoakFreshness(t *testing.T) {
	o := newOracle(t, *soakSeed, startFleet(t, 3))
	o.playSoak(t, faults)
	o.standbyWasTried(t)
}

// playSoak plays the faults in a random order for -soak.
func (o *oracle) playSoak(t *testing.T, faults []fault) {
	r := rand.New(rand.NewPCG(*soakSeed, 0))
	played := map[string]int{}
	for ends := time.Now().Add(*soakFor); time.Now().Before(ends) && !t.Failed(); {
		x, also := faults[r.IntN(len(faults))], faults[r.IntN(len(faults))]
		if r.IntN(3) == 0 && x.name != also.name && !x.loses && !also.loses && !x.bursts && !also.bursts { // two at once
			x = together(x, also)
		}
		played[x.name]++
		o.fleet.slotKind(t, r.IntN(2) == 0)
		o.play(t, x)
		o.fleet.restart(t)
	}
	t.Logf("played %v", played)
}

// together is two faults, the second of which begins in the middle of the first.
func together(a, b fault) fault {
	return fault{name: a.name + " and " + b.name, forms: append(a.forms, b.forms...),
		happens: func(t *testing.T, o *oracle) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				o.judges(t, 2*before)
				b.happens(t, o)
			}()
			a.happens(t, o)
			<-done
		}}
}

// TestSoakPages compares for -soak, while rows change as fast as they can.
func TestSoakPages(t *testing.T) {
	f := startFleet(t, 2)
	f.awaitFollowed(t)
	t.Logf("seed %d", *soakSeed)
	newPages(t, *soakSeed, f.url).rounds(t, *soakFor, f.nodes)
}
