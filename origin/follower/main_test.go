package follower_test

import (
	"context"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/follower"
)

// Every test has a database, and so a slot, of its own.
var shared = postgrestest.Shared{
	Settings: map[string]string{"max_prepared_transactions": "5", "max_wal_senders": "30"},
	Prepare:  postgrestest.Prepare(admin.MigrateUp),
}

func TestMain(m *testing.M) { shared.Main(m) }

var touched, named = follower.Touched, follower.Named

const all = follower.All

const patience = 2 * time.Minute

var server = shared.Server

func must2[T any](v T, err error) T { must(err); return v }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// world is a database, a log of changes, and how far the test has read the log.
type world struct {
	*testing.T
	postgres *sandbox.Postgres
	name     string // of the database
	url      string
	db       *pgx.Conn
	log      changefeed.Log
	lists    *list.Set
	slot     string  // the kind of slot of followers that start from now on
	logged   testLog // the messages of its followers

	epoch   string
	at      changefeed.Position
	lastLSN uint64 // of the last change that newChange returned
}

func newWorld(t *testing.T, p *sandbox.Postgres) *world {
	t.Helper()
	w := &world{T: t, postgres: p, lists: list.BuiltIn(), log: changefeed.NewLocal(), logged: testLog{t}}
	if err := postgrestest.Make(w.ctx(), p, postgrestest.Template, admin.MigrateUp); err != nil { // of a server that is the test's own
		t.Fatal(err)
	}
	w.name = postgrestest.Copy(t, p, postgrestest.Template)
	w.url = p.URL(w.name)
	w.connect()
	return w
}

func (w *world) connect() {
	w.Helper()
	w.db = open(w.T, w.url)
}

var open = postgrestest.Connect

// describe makes followers that start from now on follow the lists of a description.
func (w *world) describe(yaml string) {
	w.Helper()
	d, err := list.Parse("lists.yaml", []byte(yaml))
	if err == nil {
		w.lists, err = admin.ResolveLists(w.ctx(), w.url, d)
	}
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) ctx() context.Context {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	w.Cleanup(cancel)
	return ctx
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if len(args) == 0 {
		sql = w.sqlOf(sql)
	}
	if _, err := w.db.Exec(w.ctx(), sql, args...); err != nil {
		w.Fatalf("%v\n%.200s", err, sql)
	}
}

func (w *world) text(sql string) (s string) {
	w.Helper()
	if err := w.db.QueryRow(w.ctx(), sql).Scan(&s); err != nil {
		w.Fatalf("%v\n%s", err, sql)
	}
	return s
}

func (w *world) slotName() string {
	return w.text("SELECT 'listedge_' || oid FROM pg_database WHERE datname = current_database()")
}

// running is a follower that a test has started.
type running struct {
	*follower.Follower
	stop func() // and wait
}

// Following says whether the follower holds the slot.
func (r running) Following() bool { return r.Stats().Following }

func (w *world) follow() running {
	w.Helper()
	return w.followWith(w.url, w.log, silent)
}

func (w *world) followWith(url string, log changefeed.Log, silence func() time.Duration) running {
	w.Helper()
	return w.run(w.follower(url, log, silence, &fleet.Followed{}))
}

func (w *world) follower(url string, log changefeed.Log, silence func() time.Duration, followed *fleet.Followed) *follower.Follower {
	return follower.New(follower.Options{DatabaseURL: url, Lists: w.lists, Log: log, Followed: followed, LogKept: time.Minute, Slot: w.slot, Silence: silence,
		Logger: slog.New(slog.NewTextHandler(w.logged, nil))})
}

func (w *world) run(f *follower.Follower) running {
	w.Helper()
	r := running{Follower: f}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	r.stop = func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			w.Error("the follower does not stop")
		}
	}
	w.Cleanup(r.stop)
	return r
}

// withMemory is the URL with another logical_decoding_work_mem.
func withMemory(address, memory string) string {
	u, err := url.Parse(address)
	must(err)
	u.RawQuery = url.Values{"logical_decoding_work_mem": {memory}}.Encode() + "&" + u.RawQuery
	return u.String()
}

// testLog prints log messages if the test fails.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

// eventually waits until ok returns true.
func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	sandboxtest.Within(w, patience, what, ok)
}

func (w *world) awaitFollowing(r running) {
	w.Helper()
	w.eventually("following", r.Following)
	w.skipToEnd()
}

// awaitFollowingFrom is awaitFollowing, but keeps the reading position.
func (w *world) awaitFollowingFrom(r running) {
	w.Helper()
	at, epoch := w.at, w.epoch
	w.awaitFollowing(r)
	if w.epoch == epoch {
		w.at = at
	} else {
		w.at = changefeed.Position{}
	}
}

// awaitFree waits until Postgres has noticed that the follower has ended.
func (w *world) awaitFree() {
	w.Helper()
	w.eventually("the slot is free", func() bool {
		return w.text("SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = '"+w.slotName()+"' AND active_pid IS NOT NULL") == "0"
	})
}

// silent is a value of Options.Silence: no heartbeat came recently.
func silent() time.Duration { return time.Second }

// skipToEnd moves the reading position to the end of the current epoch's log.
func (w *world) skipToEnd() {
	w.Helper()
	var err error
	if w.epoch, err = w.log.Epoch(w.ctx()); err != nil || w.epoch == "" {
		w.Fatalf("epoch %q: %v", w.epoch, err)
	}
	if w.at, err = w.log.Last(w.ctx(), w.epoch); err != nil {
		w.Fatal(err)
	}
}

// await reads the log until an entry satisfies wanted. It fails if a position of the
// log is missing.
func (w *world) await(what string, wanted func(changefeed.Entry) bool) changefeed.Entry {
	w.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		entries, err := readLog(w.ctx(), w.log, w.epoch, w.at, 100*time.Millisecond)
		if err != nil {
			w.Fatal(err)
		}
		for _, e := range entries {
			if follows := e.Position.Term == w.at.Term && e.Position.N == w.at.N+1; w.at != (changefeed.Position{}) &&
				!follows && (e.TermStart == nil || e.TermStart.Previous != w.at) {
				w.Fatalf("a gap: %v after %v", e.Position, w.at)
			}
			w.at = e.Position
			if wanted(e) {
				return e
			}
		}
	}
	w.Fatalf("never came: %s", what)
	panic("unreachable")
}

func (w *world) change() changefeed.Change {
	w.Helper()
	return *w.await("a change", func(e changefeed.Entry) bool { return e.Change != nil }).Change
}

// publishes writes an item of workspace 1, and expects it to be the next change.
func (w *world) publishes() {
	w.Helper()
	w.exec("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')")
	if is := touched(w.change()); is != "items:1" {
		w.Errorf("published: %s", is)
	}
}

// newChange returns the next change that no earlier term has published. Its LSN is
// greater than that of every change that newChange has returned.
func (w *world) newChange() changefeed.Change {
	w.Helper()
	change := w.change()
	for change.LSN <= w.lastLSN {
		change = w.change()
	}
	w.lastLSN = change.LSN
	return change
}

func (w *world) heartbeat() changefeed.Heartbeat {
	w.Helper()
	return *w.await("a heartbeat", func(e changefeed.Entry) bool { return e.Heartbeat != nil }).Heartbeat
}

// readLog opens a reader and reads once.
func readLog(ctx context.Context, log changefeed.Log, epoch string, after changefeed.Position, wait time.Duration) ([]changefeed.Entry, error) {
	reader, _, err := log.Reader(ctx)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	entries, _, err := reader.Read(ctx, epoch, after, wait)
	return entries, err
}
