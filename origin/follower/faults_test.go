package follower

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/origin"
	"listedge/sandbox"
	"listedge/sandbox/sandboxtest"
	"listedge/stream"
)

// faultyLog is a log that a test makes fail.
type faultyLog struct {
	stream.Log
	append func(ctx context.Context, epoch string, entries []stream.Entry) error // before; nil = as ever
	naming func(from, to string)                                                 // before; nil = as ever
	away   atomic.Bool
}

var errAway = errors.New("the log is away")

func (l *faultyLog) ok() error {
	if l.away.Load() {
		return errAway
	}
	return nil
}

func (l *faultyLog) Append(ctx context.Context, epoch string, entries ...stream.Entry) error {
	if err := l.ok(); err != nil {
		return err
	}
	if l.append != nil {
		if err := l.append(ctx, epoch, entries); err != nil {
			return err
		}
	}
	return l.Log.Append(ctx, epoch, entries...)
}

func (l *faultyLog) SetEpoch(ctx context.Context, from, to string) error {
	if l.naming != nil {
		l.naming(from, to)
	}
	return l.Log.SetEpoch(ctx, from, to)
}

func (l *faultyLog) Epoch(ctx context.Context) (string, error) {
	if err := l.ok(); err != nil {
		return "", err
	}
	return l.Log.Epoch(ctx)
}

func (l *faultyLog) Last(ctx context.Context, epoch string) (stream.Position, error) {
	if err := l.ok(); err != nil {
		return stream.Position{}, err
	}
	return l.Log.Last(ctx, epoch)
}

func (l *faultyLog) Probes(ctx context.Context) (map[string]uint64, error) {
	if err := l.ok(); err != nil {
		return nil, err
	}
	return l.Log.Probes(ctx)
}

// awaitFree waits until Postgres has noticed that the follower is gone.
func (w *world) awaitFree() {
	w.Helper()
	w.eventually("the slot is free", func() bool {
		return w.text("SELECT coalesce(active_pid, 0)::text FROM pg_replication_slots WHERE slot_name = '"+w.slotName()+"'") == "0"
	})
}

func never() time.Duration  { return 0 }
func always() time.Duration { return time.Hour }

func TestAFrozenFollowerIsOvertakenAndFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server().Postgres)
	thaw, frozen := make(chan struct{}), make(chan struct{})
	var freeze atomic.Bool
	var once sync.Once
	var late atomic.Int64
	slow := &faultyLog{Log: w.log}
	slow.append = func(context.Context, string, []stream.Entry) error {
		if freeze.Load() {
			once.Do(func() { close(frozen) })
			<-thaw
			late.Add(1)
		}
		return nil
	}
	first := w.followWith(w.url, slow, never)
	w.awaitFollowing(first)
	w.heartbeat()
	epoch := w.epoch
	freeze.Store(true)
	<-frozen
	second := w.followWith(w.url, w.log, always)
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	began := time.Now()
	w.awaitFollowingFrom(second)
	if took := time.Since(began); took > 1500*time.Millisecond {
		t.Errorf("taken over after %s", took)
	}
	if w.epoch != epoch {
		t.Errorf("a new epoch, though nothing was missed")
	}
	if is := touched(w.change()); is != "items:1" {
		t.Error(is)
	}
	first.Follower.options.Logger.Info("thawing")
	close(thaw)
	w.eventually("the late entry is tried", func() bool { return late.Load() > 0 })
	w.eventually("the frozen one steps down", func() bool { return !first.Following() })
	freeze.Store(false)
	for range 20 {
		w.heartbeat() // and await checks that nothing stands between
	}
	if !second.Following() || first.Following() {
		t.Error("both or none follow")
	}
	if present, _ := w.log.Epoch(t.Context()); present != epoch {
		t.Errorf("the epoch turned to %s", present)
	}
}

// An overtaken follower may be stopped anywhere, just before it names its epoch
// as well: it must not call nodes back to it, not for a moment.
func TestAnOvertakenFollowerNamesNoEpoch(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"as it begins": false, "as it mends what the log lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server().Postgres)
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
			first := w.followWith(w.url, log, never)
			if lost {
				w.awaitFollowing(first)
				w.heartbeat()
				stop.Store(true)
				must(w.log.SetEpoch(w.ctx(), w.epoch, ""))
			}
			<-stopped
			second := w.followWith(w.url, w.log, always)
			w.awaitFollowing(second)
			epoch := w.epoch
			watching, done := context.WithCancel(t.Context())
			named := make(chan string, 1)
			go func() { // what a node would see
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

func TestTheNextFollowsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server().Postgres)
	f := w.follow()
	w.awaitFollowing(f)
	candidates := []running{w.follow(), w.follow()}
	for range 3 {
		w.heartbeat()
		epoch := w.epoch
		began := time.Now()
		f.stop()
		w.eventually("the next follows", func() bool { return candidates[0].Following() || candidates[1].Following() })
		if took := time.Since(began); took > time.Second {
			t.Errorf("after %s", took)
		} else {
			t.Logf("after %s", took)
		}
		w.turn()
		if w.epoch != epoch {
			t.Error("a new epoch, though nothing was missed")
		}
		if candidates[1].Following() {
			candidates[0], candidates[1] = candidates[1], candidates[0]
		}
		f, candidates[0] = candidates[0], w.follow()
	}
}

func TestAnAmbiguousAppendIsNotDuplicated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server().Postgres)
	doubtful := &faultyLog{Log: w.log}
	var n, most atomic.Int64
	doubtful.append = func(ctx context.Context, epoch string, entries []stream.Entry) error {
		most.Store(max(most.Load(), int64(len(entries))))
		happens := len(entries) // and nobody knows
		switch n.Add(1) % 4 {
		case 0:
			return nil
		case 1:
			happens = 0
		case 2:
			happens /= 2
		}
		if err := w.log.Append(ctx, epoch, entries[:happens]...); err != nil {
			return err
		}
		return context.DeadlineExceeded
	}
	f := w.followWith(w.url, doubtful, never)
	w.awaitFollowing(f)
	expect := func(from, to int) {
		t.Helper()
		for n := from; n < to; n++ {
			if c := w.change(); len(c.Pairs) != 1 || c.Pairs[0].Workspace != number(n) {
				t.Fatalf("change %d: %+v", n, c)
			}
		}
	}
	const few, all = 9, 300
	insert := func(n int) {
		w.exec("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')", number(n))
	}
	for n := range few {
		insert(n)
	}
	expect(0, few)
	f.stop()
	w.awaitFree()
	for n := few; n < all; n++ { // which come at once
		insert(n)
	}
	f = w.followWith(w.url, doubtful, never)
	w.awaitFollowingFrom(f)
	again := int(w.change().Pairs[0].Workspace[15]) // what was not confirmed yet
	if again > few {
		t.Fatalf("begins with %d", again)
	}
	expect(again+1, all)
	if s := f.Stats(); s.Terms != 1 || s.Commits != uint64(all-again) || most.Load() < 3 {
		t.Errorf("%+v, %d at once", s, most.Load())
	}
}

func TestALogThatIsAwayLosesNoChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server().Postgres)
	log := &faultyLog{Log: w.log}
	f := w.followWith(w.url, log, never)
	w.awaitFollowing(f)
	w.heartbeat()
	epoch := w.epoch
	log.away.Store(true)
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	began := time.Now()
	w.eventually("giving up", func() bool { return !f.Following() })
	if took := time.Since(began); took < logPatience/2 || took > 4*time.Second {
		t.Errorf("gave up after %s", took)
	}
	w.awaitFree()
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($2, 'x')"))
	log.away.Store(false)
	w.awaitFollowingFrom(f)
	if w.epoch != epoch {
		t.Error("a new epoch, though nothing was missed")
	}
	if a, b := touched(w.change()), touched(w.change()); a != "items:1" || b != "items:2" {
		t.Errorf("%s, %s", a, b)
	}
}

// A candidate that reads no heartbeats may itself be what is cut off, and a
// holder may be busy with a huge transaction: it lives as long as it answers.
func TestAHealthyHolderIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server().Postgres)
	silent := &faultyLog{Log: w.log}
	holder := w.followWith(w.url, w.log, never)
	w.awaitFollowing(holder)
	w.followWith(w.url, silent, always) // reads the log, hears nothing
	away := &faultyLog{Log: w.log}
	away.away.Store(true)
	w.followWith(w.url, away, always)
	w.exec(`INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), md5(g::text) FROM generate_series(1, 15000) g`) // longer than stalledAfter to decode
	for range 40 {
		w.heartbeat()
	}
	if s := holder.Stats(); !s.Following || s.Terms != 1 {
		t.Errorf("%+v", s)
	}
}

func TestEpochsBeginWhereSomethingMayBeMissed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  string // while nobody follows
		anew bool
	}{
		"nothing happened":         {"", false},
		"changes":                  {"INSERT INTO items (workspace_id, name) VALUES ($1, 'x')", false},
		"slot dropped":             {"INSERT INTO items (workspace_id, name) VALUES ($1, 'x'); SELECT pg_drop_replication_slot('SLOT')", true},
		"slot dropped and made":    {"SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')", true},
		"slot advanced":            {"INSERT INTO items (workspace_id, name) VALUES ($1, 'x'); SELECT pg_replication_slot_advance('SLOT', pg_current_wal_lsn())", true},
		"publication changed":      {"ALTER PUBLICATION listedge DROP TABLE items; ALTER PUBLICATION listedge ADD TABLE items (workspace_id, id)", true},
		"publication written to":   {"ALTER PUBLICATION listedge SET (publish = 'insert'); INSERT INTO items (workspace_id, name) VALUES ($1, 'x'); ALTER PUBLICATION listedge SET (publish = 'insert, update, delete, truncate')", true},
		"publication away, writes": {"DROP PUBLICATION listedge; INSERT INTO items (workspace_id, name) VALUES ($1, 'x'); MIGRATE", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server().Postgres)
			f := w.follow()
			w.awaitFollowing(f)
			w.heartbeat()
			before := w.epoch
			f.stop()
			slot := w.slotName()
			w.awaitFree()
			for _, sql := range splitSQL(c.sql) {
				switch {
				case sql == "MIGRATE":
					if _, err := origin.MigrateUp(w.ctx(), w.url); err != nil {
						t.Fatal(err)
					}
				default:
					w.exec(ids(replaceSlot(sql, slot)))
				}
			}
			w.awaitFollowing(w.follow())
			w.eventually("an epoch that stays", func() bool { w.turn(); return !c.anew || w.epoch != before })
			if anew := w.epoch != before; anew != c.anew {
				t.Errorf("epoch %s, then %s", before, w.epoch)
			}
			w.eventually("changes of what follows", func() bool {
				w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($9, 'marker')"))
				w.epoch, _ = w.log.Epoch(w.ctx())
				w.at = stream.Position{}
				for _, e := range must2(w.log.Read(w.ctx(), w.epoch, w.at, time.Millisecond)) {
					if e.Change != nil && touched(*e.Change) == "items:9" {
						return true
					}
				}
				return false
			})
		})
	}
}

// The log forgets what is old while a follower, or the next one, needs it.
func TestATrimmedLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server().Postgres)
	trim := func() stream.Position {
		last := must2(w.log.Last(w.ctx(), w.epoch))
		must(w.log.Trim(w.ctx(), w.epoch, stream.Position{Term: last.Term, N: last.N + 1}))
		return last
	}
	f := w.follow()
	w.awaitFollowing(f)
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	w.change()
	behind := w.at
	forgotten := trim()
	w.at = forgotten // a node that has read all goes on
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($2, 'x')"))
	if is := touched(w.change()); is != "items:2" {
		t.Error(is)
	}
	w.heartbeat()
	for _, e := range must2(w.log.Read(w.ctx(), w.epoch, behind, time.Millisecond))[:1] { // another sees that something is missing
		if e.Position.Compare(forgotten) <= 0 || e.Position.N == behind.N+1 {
			t.Errorf("%s is found after %s", e.Position, behind)
		}
	}
	if s := f.Stats(); s.Terms != 1 {
		t.Errorf("%+v", s)
	}
	f.stop()
	w.awaitFree()
	epoch := w.epoch
	f = w.follow()
	w.awaitFollowingFrom(f)
	if w.heartbeat(); w.epoch != epoch {
		t.Error("a new epoch, though the end of the log is there")
	}
	f.stop()
	w.awaitFree()
	trim() // and what was confirmed cannot be compared any more
	f = w.follow()
	w.awaitFollowing(f)
	if w.heartbeat(); w.epoch == epoch {
		t.Error("it goes on behind a log of which nothing is left")
	}
}

// What was prepared under one follower is told by the one under which it commits.
func TestPreparedTransactionsOutliveFollowers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server().Postgres)
	f := w.follow()
	w.awaitFollowing(f)
	prepare := func(n int) {
		w.exec(ids(fmt.Sprintf("BEGIN; INSERT INTO items (workspace_id, name) VALUES ($%d, 'prepared'); PREPARE TRANSACTION '%s_%d'", n, w.name, n)))
	}
	commit := func(verb string, n int) { w.exec(fmt.Sprintf("%s PREPARED '%s_%d'", verb, w.name, n)) }
	for n := range 3 {
		prepare(n + 1)
		t.Cleanup(func() { // every new slot of the server would wait for it
			_, _ = w.db.Exec(context.Background(), fmt.Sprintf("ROLLBACK PREPARED '%s_%d'", w.name, n+1))
		})
	}
	here := w.heartbeat().LSN
	w.eventually("the slot is confirmed beyond the preparing", func() bool {
		return w.text(fmt.Sprintf("SELECT (confirmed_flush_lsn >= '%s'::pg_lsn)::text FROM pg_replication_slots WHERE slot_name = '%s'", pglogrepl.LSN(here), w.slotName())) == "true"
	})
	f.stop()
	w.awaitFree()
	commit("COMMIT", 1) // while nobody follows
	epoch := w.epoch
	w.awaitFollowingFrom(w.follow())
	if is := touched(w.change()); is != "items:1" {
		t.Error(is)
	}
	commit("ROLLBACK", 2)
	commit("COMMIT", 3)
	if is := touched(w.change()); is != "items:3" {
		t.Error(is)
	}
	w.await("it settles", func(e stream.Entry) bool { return e.Heartbeat != nil && len(e.Heartbeat.Unsettled) == 0 })
	if w.epoch != epoch {
		t.Error("a new epoch, though nothing was missed")
	}
}

func must2[T any](v T, err error) T { must(err); return v }

// TestServersThatFail ill-treats one server of its own.
func TestServersThatFail(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := sandbox.StartPostgres(ctx, sandbox.PostgresOptions{Dir: sandboxtest.Dir(t), Disposable: true, Settings: map[string]string{
		"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	w := newWorld(t, p)
	f := w.follow()
	w.awaitFollowing(f)
	w.heartbeat()
	newEpoch := func(what string, fail func()) {
		t.Helper()
		before := w.epoch
		fail()
		w.eventually(what+": a new epoch", func() bool { e, _ := w.log.Epoch(w.ctx()); return e != before })
		w.connect()
		w.awaitFollowing(f)
		w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
		w.await(what+": a change", func(e stream.Entry) bool { return e.Change != nil })
		w.heartbeat()
	}
	restart := func(s syscall.Signal) func() {
		return func() {
			must(p.Kill(s))
			must(p.Restart(w.ctx()))
		}
	}
	newEpoch("SIGQUIT", restart(syscall.SIGQUIT))
	newEpoch("SIGINT", restart(syscall.SIGINT))
	newEpoch("one backend", func() {
		must(syscall.Kill(int(w.db.PgConn().PID()), syscall.SIGKILL))
	})
	newEpoch("lost by max_slot_wal_keep_size", func() {
		f.stop()
		for range 3 {
			w.exec("SELECT pg_logical_emit_message(true, 'fill', repeat('x', 17000000))")
			w.exec("SELECT pg_switch_wal()")
			w.exec("CHECKPOINT")
		}
		if is := w.text("SELECT wal_status FROM pg_replication_slots WHERE slot_name = '" + w.slotName() + "'"); is != "lost" {
			t.Fatalf("the slot is %s", is)
		}
		f = w.follow()
	})

	t.Run("a commit that hangs in synchronous replication stays unsettled", func(t *testing.T) {
		w := *w
		w.T = t
		end := withSetting(t, p, "synchronous_standby_names", "nobody")
		waiting := open(t, w.url)
		pid := waiting.PgConn().PID()
		done := make(chan error, 1)
		go func() {
			_, err := waiting.Exec(context.Background(), ids("INSERT INTO items (workspace_id, name) VALUES ($7, 'hangs')"))
			done <- err
		}()
		c := *w.await("the change", func(e stream.Entry) bool { return e.Change != nil && touched(*e.Change) == "items:7" }).Change
		unsettled := func(h stream.Heartbeat) bool {
			return len(h.Unsettled) == 1 && h.Unsettled[0].XID == c.XID && touched(h.Unsettled[0]) == "items:7"
		}
		// Long enough that it could have been confirmed; and then another follows.
		for began := time.Now(); time.Since(began) < confirmAfter+time.Second; {
			if h := w.heartbeat(); !unsettled(h) {
				t.Fatalf("%+v", h)
			}
		}
		f.stop()
		f = w.follow()
		w.awaitFollowing(f)
		w.heartbeat() // was it decoded again before?
		if h := w.heartbeat(); !unsettled(h) {
			t.Fatalf("the next term does not know of it: %+v", h)
		}
		reader := open(t, w.url)
		var n int
		if must(reader.QueryRow(t.Context(), "SELECT count(*) FROM items WHERE name = 'hangs'").Scan(&n)); n != 0 {
			t.Error("visible already")
		}
		if _, err := reader.Exec(t.Context(), "SELECT pg_cancel_backend($1)", pid); err != nil {
			t.Fatal(err)
		}
		must(<-done)
		w.await("it settles", func(e stream.Entry) bool { return e.Heartbeat != nil && len(e.Heartbeat.Unsettled) == 0 })
		end()
	})

	t.Run("a frozen server does not keep the follower from ending", func(t *testing.T) {
		must(p.Freeze())
		defer func() { must(p.Thaw()) }()
		began := time.Now()
		f.stop()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
	f.stop()
	w.eventually("no connection is left", func() bool {
		return w.text("SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'listedge follower'") == "0"
	})
}

// withSetting changes a setting of the server until it is told to end.
func withSetting(t *testing.T, p *sandbox.Postgres, name, value string) (end func()) {
	t.Helper()
	set := func(sql string) {
		conn := open(t, p.URL("postgres"))
		for _, sql := range []string{sql, "SELECT pg_reload_conf()"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			var pending bool
			fresh := open(t, p.URL("postgres"))
			if err := fresh.QueryRow(t.Context(), "SELECT current_setting($1) = $2", name, value).Scan(&pending); err != nil || time.Now().After(deadline) {
				t.Fatal(err)
			}
			closeConn(fresh.PgConn())
			if pending == (sql[:len("ALTER SYSTEM SET")] == "ALTER SYSTEM SET") {
				return
			}
		}
	}
	set(fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value))
	return func() { set("ALTER SYSTEM RESET " + name) }
}
