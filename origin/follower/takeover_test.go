package follower_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
)

// A follower may be frozen anywhere: as it appends, just before it names its epoch, and with a slot that it has just made. If another
// node has taken over when it continues, it steps down. It appends nothing, and does not name its epoch, not even for a moment.
func TestAFrozenFollowerIsOvertakenAndFenced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind, call string // of the log
		nth        int64  // such call from the beginning; 0 = of one that follows
		lost       bool   // its epoch, before
		anew       bool   // begins the other an epoch
	}{
		"as it appends":                        {"persistent", "Append", 0, false, false}, // the slot has what was written meanwhile
		"as it appends, with a temporary slot": {"temporary", "Append", 0, false, true},
		"as it begins":                         {"persistent", "SetEpoch", 1, false, true},
		"as it mends what the log lost":        {"persistent", "SetEpoch", 0, true, true},
		"with a new slot":                      {"temporary", "Epoch", 2, false, true}, // first before it makes the slot
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			w.slot = c.kind
			frozen, thaw := make(chan struct{}), make(chan struct{})
			var armed atomic.Bool
			var calls, woken atomic.Int64
			freeze := sync.OnceFunc(func() { close(frozen) })
			armed.Store(c.nth > 0)
			log := &faultyLog{Log: w.log, before: func(call string) {
				if call == c.call && armed.Load() && calls.Add(1) >= c.nth {
					freeze()
					<-thaw
					woken.Add(1)
				}
			}}
			first := w.followWith(w.url, log, silent)
			if c.nth == 0 {
				w.awaitFollowing(first)
				w.heartbeat()
				armed.Store(true)
			}
			if c.lost {
				must(w.log.SetEpoch(w.ctx(), w.epoch, ""))
			}
			<-frozen
			was := w.epoch
			w.exec("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')")
			second := w.follow()
			w.awaitFollowingFrom(second)
			if (w.epoch != was) != c.anew {
				t.Errorf("epoch %s, then %s", was, w.epoch)
			}
			w.exec("INSERT INTO items (workspace_id, name) VALUES ($2, 'x')")
			published := ""
			w.await("what is written then", func(e changefeed.Entry) bool {
				if e.Change != nil {
					published += touched(*e.Change) + " "
				}
				return strings.HasSuffix(published, "items:2 ")
			})
			if !c.anew && published != "items:1 items:2 " {
				t.Errorf("published: %s", published)
			}
			epoch := w.epoch
			watching, done := context.WithCancel(t.Context())
			named := make(chan string, 1)
			go func() { // reads the epoch as a node does
				defer close(named)
				for watching.Err() == nil {
					if present, _ := w.log.Epoch(watching); present != epoch && watching.Err() == nil {
						named <- present
						return
					}
				}
			}()
			close(thaw)
			w.eventually("the first wakes and steps down", func() bool { return woken.Load() > 0 && !first.Following() })
			for range 20 {
				w.heartbeat() // fails if a position is missing
			}
			done()
			if present, yes := <-named; yes {
				t.Errorf("the epoch turned from %s to %q", epoch, present)
			}
			if !second.Following() || first.Following() || c.nth > 0 && first.Stats().Terms > 0 {
				t.Errorf("%+v, %+v", first.Stats(), second.Stats())
			}
		})
	}
}

// followAs starts a follower that reports to followed what it finds.
func (w *world) followAs(followed *fleet.Followed, log changefeed.Log) running {
	w.Helper()
	return w.run(w.follower(w.url, log, silent, followed))
}

// No node follows a server on an older timeline than the fleet has followed, and the slot
// stays free. Once the newer epoch is deleted, a node follows.
func TestAServerOnAnOldTimelineIsNotFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	followed, log, others := &fleet.Followed{}, &faultyLog{Log: w.log}, &faultyLog{Log: w.log}
	first := w.followAs(followed, log)
	w.awaitFollowing(first)
	name, _ := fleet.ParseEpoch(w.epoch)
	name.Timeline = 2
	must(w.log.SetEpoch(w.ctx(), w.epoch, name.String())) // by the new primary's follower
	w.eventually("it steps down", func() bool { return !first.Following() })
	w.awaitFree()
	terms := first.Stats().Terms
	followed.ObserveEpoch(name.String()) // as the node's reader of the log does
	before := log.epochs.Load()
	w.eventually("it has found that its timeline is old", func() bool { return followed.OldTimeline() != nil })
	second := w.followAs(&fleet.Followed{}, others) // it learns of the newer timeline from the log
	w.eventually("the second has tried", func() bool { return others.epochs.Load() > 2 })
	if first.Stats().Terms != terms || second.Stats().Terms != 0 || log.epochs.Load() > before+2 {
		t.Errorf("%+v, %+v, %d attempts", first.Stats(), second.Stats(), log.epochs.Load()-before)
	}
	if present, _ := w.log.Epoch(w.ctx()); present != name.String() {
		t.Errorf("the epoch is %s", present)
	}
	must(w.log.SetEpoch(w.ctx(), name.String(), ""))
	w.awaitFollowing(second)
}

// The first connection to another database behind the same URL (a restored one, for
// example) notices it.
func TestAnotherDatabaseBehindTheSameURLIsFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	followed := &fleet.Followed{}
	f := w.followAs(followed, w.log)
	w.awaitFollowing(f)
	before, epoch := followed.Digest(), w.epoch
	admin := open(t, w.postgres.URL("postgres"))
	for _, sql := range []string{
		"ALTER DATABASE THIS ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = 'THIS'",
		"ALTER DATABASE THIS RENAME TO THIS_old",
		"CREATE DATABASE THIS TEMPLATE " + postgrestest.Template,
	} {
		must2(admin.Exec(w.ctx(), strings.ReplaceAll(sql, "THIS", w.name)))
	}
	w.eventually("another database is found", func() bool { return followed.Digest() != before })
	w.eventually("another epoch", func() bool { e, _ := w.log.Epoch(w.ctx()); return e != epoch })
	w.connect()
	w.awaitFollowing(f)
	if name, ok := fleet.ParseEpoch(w.epoch); !ok || name.Identity != followed.Digest() {
		t.Errorf("%s is followed as %s", followed.Digest(), w.epoch)
	}
	w.publishes()
}

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
