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

// awaitFree waits until Postgres has noticed that the follower has ended.
func (w *world) awaitFree() {
	w.Helper()
	w.eventually("the slot is free", func() bool {
		return w.text("SELECT coalesce(active_pid, 0)::text FROM pg_replication_slots WHERE slot_name = '"+w.slotName()+"'") == "0"
	})
}

// silent is a value of Options.Silence: no heartbeat came recently.
func silent() time.Duration { return time.Second }

func TestAFrozenFollowerIsOvertakenAndFenced(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"persistent", "temporary"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			overtake(t, kind)
		})
	}
}

func overtake(t *testing.T, kind string) {
	w := newWorld(t, server())
	w.slot = kind
	thaw, frozen := make(chan struct{}), make(chan struct{})
	var freeze atomic.Bool
	var once sync.Once
	var late atomic.Int64
	slow := &faultyLog{Log: w.log}
	slow.append = func(context.Context, string, []changefeed.Entry) error {
		if freeze.Load() {
			once.Do(func() { close(frozen) })
			<-thaw
			late.Add(1)
		}
		return nil
	}
	first := w.followWith(w.url, slow, silent)
	w.awaitFollowing(first)
	w.heartbeat()
	epoch := w.epoch
	freeze.Store(true)
	<-frozen
	second := w.followWith(w.url, w.log, silent)
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	w.awaitFollowingFrom(second)
	if anew := w.epoch != epoch; anew != (kind == "temporary") { // only a persistent slot has what was written meanwhile
		t.Errorf("epoch %s, then %s", epoch, w.epoch)
	}
	epoch = w.epoch
	if kind == "temporary" {
		w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	}
	if is := touched(w.change()); is != "items:1" {
		t.Error(is)
	}
	close(thaw)
	w.eventually("the late entry is tried", func() bool { return late.Load() > 0 })
	w.eventually("the frozen one steps down", func() bool { return !first.Following() })
	freeze.Store(false)
	for range 20 {
		w.heartbeat() // fails if a position is missing
	}
	if !second.Following() || first.Following() {
		t.Error("both or none follow")
	}
	if present, _ := w.log.Epoch(t.Context()); present != epoch {
		t.Errorf("the epoch turned to %s", present)
	}
}

// A follower may be frozen anywhere, even just before it sets its epoch. If another node has
// taken over when it continues, it must not set its epoch, not even for a moment.
func TestAnOvertakenFollowerNamesNoEpoch(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"as it begins": false, "as it mends what the log lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			var stop atomic.Bool
			var once sync.Once
			var woken atomic.Int64
			stopped, wake := make(chan struct{}), make(chan struct{})
			log := &faultyLog{Log: w.log}
			log.naming = func(string, string) {
				if stop.Load() {
					once.Do(func() { close(stopped) })
					<-wake
					woken.Add(1)
				}
			}
			stop.Store(!lost)
			first := w.followWith(w.url, log, silent)
			if lost {
				w.awaitFollowing(first)
				w.heartbeat()
				stop.Store(true)
				must(w.log.SetEpoch(w.ctx(), w.epoch, ""))
			}
			<-stopped
			second := w.followWith(w.url, w.log, silent)
			w.awaitFollowing(second)
			epoch := w.epoch
			watching, done := context.WithCancel(t.Context())
			named := make(chan string, 1)
			go func() { // reads the epoch as a node does
				defer close(named)
				for watching.Err() == nil {
					if present, _ := w.log.Epoch(watching); present != epoch {
						named <- present
						return
					}
				}
			}()
			stop.Store(false)
			close(wake)
			w.eventually("the first wakes and steps down", func() bool { return woken.Load() > 0 && !first.Following() })
			for range 5 {
				w.heartbeat()
			}
			done()
			if present, yes := <-named; yes {
				t.Errorf("the epoch turned from %s to %q", epoch, present)
			}
			if !second.Following() {
				t.Error("the second does not follow any more")
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
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	if is := touched(w.change()); is != "items:1" {
		t.Error(is)
	}
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
