//go:build soak

package limiter

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// soakFor is how long each of the simulations below goes on, with seeds that no
// other test has: at some ten thousand requests a seed.
const soakFor = time.Minute

// Storms in virtual time, seed after seed:
//
//	go test -tags soak -run Soak -v -timeout 30m ./limiter
func TestSoakNeverOverAtSpending(t *testing.T) {
	var all hazards
	seeds, admitted := uint64(0), int64(0)
	for began := time.Now(); time.Since(began) < soakFor; seeds++ {
		o := storm{seed: 1_000_000 + seeds}.run(t)
		if o.over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", 1_000_000+seeds, o.over, o.worst)
		}
		all.add(o.tried)
		admitted += o.admitted
	}
	t.Logf("%d storms, %d admissions, none of them too many: %+v", seeds, admitted, all)
}

func TestSoakNeverOverAtTheEdgesOfEpochs(t *testing.T) {
	seeds := uint64(0)
	for began := time.Now(); time.Since(began) < soakFor; seeds++ {
		if over, worst := dormant(t, 1_000_000+seeds); over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", 1_000_000+seeds, over, worst)
		}
	}
	t.Logf("%d epochs' edges, none of them crossed", seeds)
}

// Three nodes, five limits and a flood on a real Redis that is stopped, killed
// and emptied at random, and on one that fails over.
func TestSoakOnRealRedis(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 31))
	server, client := startRedis(t)
	f := startFlood(t, time.Millisecond, func() redis.UniversalClient { return client }, 0)
	lost, stops, deaths, flushes := 0, 0, 0, 0
	for time.Since(f.began) < soakFor {
		time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
		var err error
		switch random.IntN(4) {
		case 0, 1:
			stops++
			if err = server.Freeze(); err == nil {
				time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
				err = server.Thaw()
			}
		case 2:
			deaths++
			lost++
			if err = server.Kill(); err == nil {
				time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
				err = server.Restart(t.Context())
			}
		case 3:
			flushes++
			lost++
			err = client.FlushAll(t.Context()).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
		f.eventually(t, "the breakers close", func(s Stats) bool { return s.Breaker == "closed" })
	}
	t.Logf("stopped %d times, killed %d, emptied %d", stops, deaths, flushes)
	// A hang of 3 s may cost a hundredth of a burst, and a bucket of five a token.
	f.end(t, float64(lost)+.1*float64(1+stops))
}

func TestSoakThroughFailOvers(t *testing.T) {
	master, replica, watcher, client := startSentinel(t)
	f := startFlood(t, time.Millisecond, client, 0)
	overs := 0
	for ; time.Since(f.began) < soakFor; overs++ {
		time.Sleep(2 * time.Second)
		if err := master.Kill(); err != nil {
			t.Fatal(err)
		}
		within(t, 30*time.Second, "the replica has taken over", func() bool {
			host, port := splitAddr(t, replica.Addr())
			named, err := watcher.GetMasterAddrByName(t.Context(), "main").Result()
			return err == nil && named[0] == host && named[1] == port
		})
		if err := master.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		within(t, 60*time.Second, "the old master follows the new one", func() bool {
			replicas, err := watcher.Replicas(t.Context(), "main").Result()
			return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok"
		})
		f.eventually(t, "the nodes are on the new master", func(s Stats) bool { return s.Breaker == "closed" })
		master, replica = replica, master
	}
	t.Logf("failed over %d times", overs)
	// Two bursts each: the old master is back, empty, before all nodes know the
	// new one. And whoever finds that one late admits its part on top until then.
	f.apart = time.Duration(overs) * 500 * time.Millisecond
	f.end(t, 2.1*float64(overs)+.1)
}
