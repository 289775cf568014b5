package follower_test

import (
	"strings"
	"sync"
	"testing"
	"time"

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
