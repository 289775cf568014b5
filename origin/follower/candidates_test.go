package follower

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/fleet"
	"listedge/internal/sandbox/sandboxtest"
)

// While heartbeats arrive, a fleet sends its primary few other queries, however many
// nodes it has: the follower at most 5 a second, each candidate one in 10 seconds.
func TestAFleetAsksThePrimaryForLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.PostgresWith(t, map[string]string{"shared_preload_libraries": "pg_stat_statements"}))
	w.exec("CREATE EXTENSION pg_stat_statements")
	w.awaitFollowing(w.follow())
	const candidates = 20
	var polled sync.WaitGroup
	for range candidates {
		polled.Add(1)
		first := sync.OnceFunc(polled.Done)
		w.followWith(w.url, w.log, func() time.Duration { first(); return 0 })
	}
	polled.Wait()
	w.heartbeat()
	w.exec("SELECT pg_stat_statements_reset()")
	w.skipToEnd()
	began := time.Now()
	for range 60 {
		w.heartbeat()
	}
	rows, err := w.db.Query(w.ctx(), "SELECT query, calls FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'")
	must(err)
	defer rows.Close()
	heartbeats, others := 0, 0
	for rows.Next() {
		var query string
		var calls int
		must(rows.Scan(&query, &calls))
		if strings.Contains(query, "pg_current_snapshot()::text, version") {
			heartbeats += calls
			continue
		}
		t.Logf("%d × %.80s", calls, query)
		others += calls
	}
	must(rows.Err())
	passed := time.Since(began).Seconds()
	// And one for each candidate, because its interval may end right after the beginning.
	if most := 5*(passed+1) + candidates*(passed/10+1); float64(others) > most {
		t.Errorf("%d queries beside %d heartbeats in %.1f s, want at most %.0f", others, heartbeats, passed, most)
	}
	if heartbeats < 50 { // one may have been prepared before
		t.Errorf("%d heartbeats were counted: is the statement known?", heartbeats)
	}
}

// A candidate polls the slot at once when heartbeats have stopped, and otherwise after
// idleInterval. It does not wake up much earlier.
func TestACandidateWaits(t *testing.T) {
	t.Run("until heartbeats stop", func(t *testing.T) {
		for stopsAfter := time.Duration(0); stopsAfter < time.Second; stopsAfter += 7 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				waited, wakes := waitWithHeartbeats(t, stopsAfter)
				if late := waited - stopsAfter.Truncate(heartbeatEvery) - silenceThreshold; late <= 0 || late > 2*pollFirst {
					t.Errorf("heartbeats until %v: polls %v after the threshold", stopsAfter, late)
				}
				if most := 4 + 2*int(waited/(silenceThreshold-heartbeatEvery)); wakes > most {
					t.Errorf("heartbeats until %v: wakes %d times in %v", stopsAfter, wakes, waited)
				}
			})
		}
	})
	t.Run("while they go on", func(t *testing.T) {
		waits := map[time.Duration]bool{}
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				waited, _ := waitWithHeartbeats(t, time.Hour)
				if waited < 10*time.Second || waited > 12*time.Second+silenceThreshold+pollLast {
					t.Errorf("polls after %v", waited)
				}
				waits[waited.Truncate(100*time.Millisecond)] = true
			})
		}
		if len(waits) < 3 {
			t.Errorf("candidates poll at the same moments: %v", waits)
		}
	})
	t.Run("until its server is known to be an old primary", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := New(Options{Followed: &fleet.Followed{}, Silence: func() time.Duration { return 0 }})
			server := fleet.Server{Timeline: 1}
			f.options.Followed.SetServer(server)
			newer := fleet.EpochName{Identity: server.Digest(), Timeline: 2, Instance: "r", Published: "p", Random: "x"}
			f.options.Followed.ObserveEpoch(newer.String())
			began := time.Now()
			must(f.waitPoll(t.Context()))
			if waited := time.Since(began); waited > 2*silenceThreshold {
				t.Errorf("polls after %v", waited)
			}
		})
	})
}

// waitWithHeartbeats runs waitPoll with heartbeats until stopsAfter.
func waitWithHeartbeats(t *testing.T, stopsAfter time.Duration) (waited time.Duration, wakes int) {
	began := time.Now()
	f := New(Options{Followed: &fleet.Followed{}, Silence: func() time.Duration {
		wakes++
		passed := time.Since(began)
		return passed - min(passed, stopsAfter).Truncate(heartbeatEvery)
	}})
	must(f.waitPoll(t.Context()))
	return time.Since(began), wakes
}
