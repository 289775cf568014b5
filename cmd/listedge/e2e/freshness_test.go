package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// TestFreshnessUnderFaults runs the oracle with the faults that the world lacks, as ALTER TABLE, or in which it relies most on how
// it simulates a server: a log that names no rows, and crashes. The soak plays all.
func TestFreshnessUnderFaults(t *testing.T) {
	t.Parallel()
	o := newOracle(t, uint64(time.Now().UnixNano()), startFleet(t, 3))
	smoke := slices.DeleteFunc(slices.Clone(faults), func(x fault) bool { return !x.smoke })
	o.playAll(t, slices.CompactFunc(smoke, func(a, b fault) bool { return a.name == b.name }))
	o.standbyWasTried(t)
	o.fleet.losesACommit(t)
}

// playAll plays every second fault with a temporary slot, the others with a persistent one.
func (o *oracle) playAll(t *testing.T, faults []fault) {
	for i, x := range faults {
		t.Run(x.name, func(t *testing.T) {
			o.fleet.slotKind(t, i%2 == 1)
			o.play(t, x)
		})
		o.fleet.restart(t) // for the faults to come
	}
	t.Logf("%d answers to lists that are rarely asked for", o.others.Load())
}

// standbyWasTried fails the test if the standby served no page.
func (o *oracle) standbyWasTried(t *testing.T) {
	o.fleet.awaitFollowed(t)
	n := o.fleet.sum(t, "listedge_origin_standby_fetches_total", `outcome="ok"`)
	if t.Logf("queries to the standby: %v", n); n == 0 {
		t.Error("the standby was never queried")
	}
}

// losesACommit finds that a commit which is lost in a crash is not shown afterwards. An
// asynchronous commit is read by one request, and then Postgres crashes before its WAL is
// flushed. If the WAL was flushed already, it tries again.
func (f *fleet) losesACommit(t *testing.T) {
	f.slotKind(t, false) // it outlives the crash, so no new slot begins another epoch
	for attempt := 1; attempt <= 20; attempt++ {
		f.awaitFollowed(t)
		workspace, key := workspaceWithKey(t, f.url)
		execute(t, f.url, "INSERT INTO items (workspace_id, name, stock_on_hand) VALUES ($1, 'a', 1)", workspace)
		n := f.nodes[attempt%len(f.nodes)]
		const old, lost = `"stockOnHand":"1"`, `"stockOnHand":"2"`
		within(t, patience, "the row", func() bool { return strings.Contains(n.fresh("/v1/items?limit=10", key), old) }) // the standby is behind
		conn := connect(t, f.url)
		must1(conn.Exec(t.Context(), "SET synchronous_commit = off"))
		must1(conn.Exec(t.Context(), "UPDATE items SET stock_on_hand = 2 WHERE workspace_id = $1", workspace))
		shown := strings.Contains(n.fresh("/v1/items?limit=20&sort=name", key, "Cache-Control: no-cache"), lost) // no rows have that list
		_ = f.postgres.Kill(syscall.SIGQUIT)
		must(f.postgres.Restart(context.Background()))
		value := must1(postgrestest.Value[int](f.url, "SELECT stock_on_hand FROM items WHERE workspace_id = $1", workspace))
		if !shown || value != 1 {
			continue // it was not lost
		}
		afterBound()
		f.awaitFollowed(t)
		within(t, patience, "a fresh page", func() bool {
			body := n.fresh("/v1/items?limit=20", key)
			if strings.Contains(body, lost) {
				t.Errorf("attempt %d: a commit that was lost is shown still: %s", attempt, body)
			}
			return body != ""
		})
		return
	}
	t.Error("no commit was lost")
}

// fresh is the body of a page that is not marked as stale; "" = there is none.
func (n *testNode) fresh(path, key string, headers ...string) (body string) {
	a, err := n.try("GET", path, key, headers...)
	if err != nil || a.StatusCode != 200 || strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error") {
		return ""
	}
	return string(a.body)
}

// fleet is nodes, as processes, on a Postgres and a Redis of their own, and maybe
// a delayed standby.
type fleet struct {
	postgres *sandbox.Postgres
	standby  *sandbox.Postgres // nil = there is none
	redis    *sandbox.Redis    // nil = flags name another
	url      string
	nodes    []*testNode
	flags    []string
}

// replayDelay is how far the standby is behind: more than the pauses of the
// busiest writers, less than those of the others.
const replayDelay = 150 * time.Millisecond

func startFleet(t *testing.T, nodes int, flags ...string) *fleet {
	t.Helper()
	f := fleetOf(t, flags...)
	f.standby = sandboxtest.Standby(t, f.postgres, map[string]string{"recovery_min_apply_delay": fmt.Sprintf("%dms", replayDelay.Milliseconds())})
	f.startNodes(t, nodes)
	return f
}

// fleetOf returns a fleet without nodes.
func fleetOf(t *testing.T, flags ...string) *fleet {
	t.Helper()
	f := &fleet{redis: sandboxtest.Redis(t), flags: flags}
	f.postgres, f.url = privateDatabaseWith(t, map[string]string{"max_prepared_transactions": "20", "max_slot_wal_keep_size": ""})
	f.setting(t, slotBound, "1GB")
	return f
}

const slotBound = "max_slot_wal_keep_size"

// slotKind has the fleet, which runs, follow with a slot of that kind. The nodes decide by the server's setting.
func (f *fleet) slotKind(t *testing.T, temporary bool) {
	t.Helper()
	f.setting(t, slotBound, map[bool]string{true: "-1", false: "1GB"}[temporary])
	within(t, patience, "a slot of that kind", func() bool {
		is, err := postgrestest.Value[bool](f.url,
			"SELECT temporary FROM pg_replication_slots WHERE database = current_database() AND active AND slot_name !~ '_new$'")
		return err == nil && is == temporary
	})
}

func (f *fleet) startNodes(t *testing.T, nodes int) {
	t.Helper()
	for range nodes {
		f.nodes = append(f.nodes, f.start(t))
	}
}

func (f *fleet) start(t *testing.T) *testNode {
	t.Helper()
	args := append([]string{"--verify", "200ms"}, f.flags...)
	if f.standby != nil {
		args = append(args, "--replica-url", f.standby.URL("listedge"))
	}
	var toRedis, toPostgres *sandboxtest.Relay
	if f.redis != nil {
		toRedis = sandboxtest.StartRelay(t, f.redis.Addr())
		args = append(args, "--redis-url", "redis://"+toRedis.Addr())
	}
	url := f.url
	if f.postgres != nil {
		toPostgres = sandboxtest.StartRelay(t, f.postgres.Addr())
		url = strings.Replace(url, f.postgres.Addr(), toPostgres.Addr(), 1)
	}
	n := launchNode(t, url, args...)
	n.toRedis, n.toPostgres = toRedis, toPostgres
	n.awaitReady(t)
	return n
}

// mismatches are the lines of the metrics that say that rows of the node were not those of the database.
func (n *testNode) mismatches() []string {
	r, err := http.Get(n.admin + "/metrics")
	if err != nil {
		return nil
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return regexp.MustCompile(`(?m)^listedge_replica_mismatches_total.* [^0\n].*$`).FindAllString(string(text), -1)
}

// mode is how the node keeps pages fresh, or why it does not say.
func (n *testNode) mode() string {
	r, err := http.Get(n.admin + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	var state struct{ Mode string }
	_ = json.NewDecoder(r.Body).Decode(&state)
	return state.Mode
}

func (n *testNode) awaitFollowed(t *testing.T) {
	t.Helper()
	within(t, patience, "changes are followed", func() bool { return n.mode() == "followed" })
}

// follower is the node that holds the slot.
func (f *fleet) follower(t *testing.T) (found *testNode) {
	t.Helper()
	within(t, patience, "somebody follows", func() bool {
		i := slices.IndexFunc(f.nodes, func(n *testNode) bool { return !n.stopped && n.metric(t, "listedge_freshness_follower") == 1 })
		if i >= 0 {
			found = f.nodes[i]
		}
		return i >= 0
	})
	return found
}

// running are the nodes that are not stopped.
func (f *fleet) running() []*testNode {
	return slices.DeleteFunc(slices.Clone(f.nodes), func(n *testNode) bool { return n.stopped })
}

func (f *fleet) awaitFollowed(t *testing.T) {
	t.Helper()
	for _, n := range f.running() {
		n.awaitFollowed(t)
	}
}

// bystander is a running node that does not hold the slot.
func (f *fleet) bystander(t *testing.T) *testNode {
	t.Helper()
	follower := f.follower(t)
	running := f.running()
	return running[slices.IndexFunc(running, func(n *testNode) bool { return n != follower })]
}

// sum adds a metric of all running nodes up.
func (f *fleet) sum(t *testing.T, name string, parts ...string) (sum float64) {
	t.Helper()
	for _, n := range f.running() {
		sum += n.metric(t, name, parts...)
	}
	return sum
}

// fault is something that happens to a fleet while it is written and read.
type fault struct {
	name    string
	happens func(t *testing.T, o *oracle)
	smoke   bool   // it is played by TestFreshnessUnderFaults, too
	hits    bool   // some answers must be hits
	forms   []form // ways to write; nil = usualForms
	loses   bool   // commits that were acknowledged, if Postgres crashes meanwhile
	bursts  bool   // it writes the rows of the oracle of pages itself
}

// So long answers are judged before a fault begins, and while it lasts: what is stale for less than
// the bound is right.
const before, during = freshnessBound / 2, 3 * freshnessBound

var faults = []fault{
	{name: "a long write transaction", hits: true, happens: func(t *testing.T, o *oracle) {
		conn := connect(t, o.fleet.url)
		defer conn.Close(context.Background())
		tx := must1(conn.Begin(t.Context()))
		must1(tx.Exec(t.Context(), "INSERT INTO items (workspace_id, name) VALUES (gen_random_uuid(), 'open')"))
		o.judges(t, 2*during)
	}},
	// Commits wait, repeatedly, for a standby that does not exist. They are in the WAL and
	// published long before they are visible.
	{name: "commits wait for a standby", happens: func(t *testing.T, o *oracle) {
		conn := connect(t, o.fleet.url)
		defer conn.Close(context.Background())
		must1(conn.Exec(t.Context(), "SET synchronous_commit = local"))
		for i := range 10 {
			must1(conn.Exec(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = '"+[]string{"absent", ""}[i%2]+"'"))
			must1(conn.Exec(t.Context(), "SELECT pg_reload_conf()"))
			o.judges(t, before)
		}
	}},
	foreignTransaction(250_000),
	// The walsender is stopped now and then: what is committed meanwhile is
	// visible long before it is published.
	{name: "decoding lags", happens: func(t *testing.T, o *oracle) {
		conn := connect(t, o.fleet.url)
		defer conn.Close(context.Background())
		for range 3 {
			var pid int
			must(conn.QueryRow(t.Context(), "SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE database = current_database()").Scan(&pid))
			if pid != 0 { // else the next follower is about to take it
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				within(t, patience, "nothing is proven", func() bool {
					return !slices.ContainsFunc(o.fleet.nodes, func(n *testNode) bool { return n.mode() == "followed" })
				})
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
			o.judges(t, before)
		}
	}},
	{name: "asynchronous writers", loses: true, happens: func(t *testing.T, o *oracle) {
		o.fleet.setting(t, "wal_writer_delay", "10s")
		o.fleet.setting(t, "synchronous_commit", "off")
		o.judges(t, 2*during)
		o.fleet.setting(t, "synchronous_commit", "on")
	}},
	{name: "transactions of 2,000 rows", forms: []form{withManyRows(2_000), inPlace}, happens: func(t *testing.T, o *oracle) { o.judges(t, 2*during) }},
	{name: "ALTER TABLE with a rewrite", smoke: true, happens: func(t *testing.T, o *oracle) {
		o.judges(t, before)
		for _, sql := range []string{"ALTER TABLE items ALTER COLUMN unit TYPE varchar(100)",
			"ALTER TABLE items ADD COLUMN IF NOT EXISTS filler int DEFAULT (random() * 1000)::int", "ALTER TABLE items ALTER COLUMN unit TYPE text"} {
			within(t, patience, sql, func() bool { // in the soak, Postgres may crash meanwhile
				conn, err := pgx.Connect(t.Context(), o.fleet.url)
				if err != nil {
					return false
				}
				defer conn.Close(context.Background())
				_, err = conn.Exec(t.Context(), sql)
				return err == nil
			})
		}
	}},
	{name: "TRUNCATE of a table, then of a partition", smoke: true, forms: append([]form{truncated, truncated, truncated}, usualForms...),
		happens: func(t *testing.T, o *oracle) {
			o.judges(t, during)
			o.fleet.partition(t)
			o.judges(t, during)
		}},
	{name: "the standby frozen, then crashed", happens: func(t *testing.T, o *oracle) {
		o.judges(t, before)
		_ = o.fleet.standby.Freeze()
		o.judges(t, during)
		_ = o.fleet.standby.Thaw()
		_ = o.fleet.standby.Kill(syscall.SIGQUIT)
		o.judges(t, before)
		must(o.fleet.standby.Restart(context.Background()))
	}},
	{name: "one backend killed", happens: func(t *testing.T, o *oracle) {
		o.judges(t, before)
		var pid int
		must(connect(t, o.fleet.url).QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
		_ = syscall.Kill(pid, syscall.SIGKILL) // all other backends are restarted with it
	}},
	{name: "Postgres crashed", smoke: true, happens: func(t *testing.T, o *oracle) {
		o.judges(t, before)
		_ = o.fleet.postgres.Kill(syscall.SIGQUIT)
		o.judges(t, during)
		must(o.fleet.postgres.Restart(context.Background()))
	}},
	// A node reads what a standby has, which replays nothing, and the others read the primary.
	{name: "a node led to a standby", happens: func(t *testing.T, o *oracle) {
		n, standby := o.fleet.bystander(t), o.fleet.standby
		execute(t, standby.URL("listedge"), "SELECT pg_wal_replay_pause()")
		o.judges(t, before)
		n.toPostgres.Redirect(standby.Addr())
		n.toPostgres.Sever()
		n.awaitCheck(t, "postgres", "is a standby")
		o.judges(t, during)
		n.toPostgres.Redirect(o.fleet.postgres.Addr())
		n.toPostgres.Sever()
		execute(t, standby.URL("listedge"), "SELECT pg_wal_replay_resume()")
		n.awaitCheck(t, "postgres", "ok")
	}},
	{name: "bursts of changes", smoke: true, bursts: true, happens: func(t *testing.T, o *oracle) { o.pages.rounds(t, pagesFor, o.fleet.running()) }},
	{name: "purges", happens: func(t *testing.T, o *oracle) {
		for _, h := range o.histories {
			command(t, "purge", "--workspace", h.workspace, "--database-url", o.fleet.url)
		}
		o.judges(t, before)
		command(t, "purge", "--all", "--database-url", o.fleet.url)
	}},
	walsenderEnded, walsenderEnded, // one of each kind of slot
	noFault,
	{name: "Redis flushed", happens: func(t *testing.T, o *oracle) {
		o.judges(t, before)
		redistest.Client(t, o.fleet.redis).FlushAll(t.Context())
	}},
	{name: "Redis frozen", happens: func(t *testing.T, o *oracle) {
		o.judges(t, before)
		_ = o.fleet.redis.Freeze()
		o.judges(t, during)
		_ = o.fleet.redis.Thaw()
	}},
	{name: "Redis restarted empty", smoke: true, happens: func(t *testing.T, o *oracle) {
		o.judges(t, before)
		_ = o.fleet.redis.Kill()
		o.judges(t, during)
		must(o.fleet.redis.Restart(context.Background()))
	}},
	{name: "a node cut off from Redis", happens: func(t *testing.T, o *oracle) {
		o.judges(t, before)
		n := o.fleet.bystander(t)
		n.toRedis.Lose(true)
		o.judges(t, during)
		n.toRedis.Lose(false)
	}},
	{name: "the follower cut off from Redis", happens: func(t *testing.T, o *oracle) {
		o.judges(t, before)
		n := o.fleet.follower(t)
		n.toRedis.Lose(true)
		within(t, patience, "another follows", func() bool { return o.fleet.follower(t) != n })
		n.toRedis.Lose(false)
	}},
	{name: "the log trimmed under a node", happens: func(t *testing.T, o *oracle) {
		n, client := o.fleet.bystander(t), redistest.Client(t, o.fleet.redis)
		gaps := n.metric(t, "listedge_freshness_resyncs_total", `cause="gap"`)
		n.signal(syscall.SIGSTOP)
		o.commits(t)()
		for _, log := range client.Keys(t.Context(), "listedge:{changes}:log:*").Val() {
			client.XTrimMaxLen(t.Context(), log, 1)
		}
		n.signal(syscall.SIGCONT)
		within(t, patience, "a gap", func() bool { return n.metric(t, "listedge_freshness_resyncs_total", `cause="gap"`) > gaps })
	}},
	followerStopped, followerKilled, followerKilled, followerStopped,
	{name: "the kind of slot changes", happens: func(t *testing.T, o *oracle) {
		for _, temporary := range []bool{true, false} {
			o.fleet.slotKind(t, temporary)
			o.judges(t, before)
		}
	}},
}

var (
	followerStopped = fault{name: "the follower SIGSTOPped", happens: func(t *testing.T, o *oracle) {
		n := o.fleet.follower(t)
		n.signal(syscall.SIGSTOP)
		n.stopped = true
		o.fleet.follower(t)
		n.stopped = false
		n.signal(syscall.SIGCONT)
	}}
	followerKilled = fault{name: "the follower SIGKILLed", smoke: true, happens: func(t *testing.T, o *oracle) {
		n := o.fleet.follower(t)
		n.stopped = true
		n.signal(syscall.SIGKILL)
		began := time.Now()
		o.fleet.follower(t)
		t.Logf("followed again after %s", time.Since(began).Round(time.Millisecond))
	}}

	noFault = fault{name: "none", hits: true, happens: func(t *testing.T, o *oracle) { o.judges(t, 2*during) }}
)

// foreignTransaction writes this many rows of another table, while the test's writers commit.
func foreignTransaction(rows int) fault {
	return fault{name: fmt.Sprintf("a foreign transaction of %d rows", rows), happens: func(t *testing.T, o *oracle) {
		for _, sql := range []string{"CREATE TABLE IF NOT EXISTS huge (n int)", fmt.Sprintf("INSERT INTO huge SELECT generate_series(1, %d)", rows),
			"TRUNCATE huge"} {
			execute(t, o.fleet.url, sql)
		}
	}}
}

// walsenderEnded: an administrator ends the connection that holds the slot. A temporary slot ends with it.
var walsenderEnded = fault{name: "the walsender ended by an administrator", happens: func(t *testing.T, o *oracle) {
	conn := connect(t, o.fleet.url)
	defer conn.Close(context.Background())
	holder := func() (pid int) {
		must(conn.QueryRow(t.Context(), "SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE database = current_database()").Scan(&pid))
		return pid
	}
	o.judges(t, before)
	ended := 0
	within(t, patience, "a walsender", func() bool { ended = holder(); return ended != 0 })
	must1(conn.Exec(t.Context(), "SELECT pg_terminate_backend($1)", ended))
	within(t, patience, "another one", func() bool { pid := holder(); return pid != 0 && pid != ended })
}}

// setting changes a setting of the primary.
func (f *fleet) setting(t *testing.T, name, value string) {
	t.Helper()
	execute(t, f.url, "ALTER SYSTEM SET "+name+" = '"+value+"'")
	execute(t, f.url, "SELECT pg_reload_conf()")
}

// play causes a fault while the oracle writes and reads.
func (o *oracle) play(t *testing.T, x fault) {
	t.Helper()
	o.fleet.awaitFollowed(t)
	o.forms, o.bursts = usualForms, x.bursts
	if x.forms != nil {
		o.forms = x.forms
	}
	if hits := o.run(t, x.name, func() { x.happens(t, o) }); x.hits && hits == 0 {
		t.Errorf("%s: no hits", x.name)
	}
}

// restart starts the nodes again that a fault has ended.
func (f *fleet) restart(t *testing.T) {
	t.Helper()
	for i, n := range f.nodes {
		if n.stopped {
			f.nodes[i] = f.start(t)
		}
	}
}

// partition divides items into two partitions, unless it is divided already.
func (f *fleet) partition(t *testing.T) {
	t.Helper()
	if done, err := postgrestest.Value[bool](f.url, "SELECT relkind = 'p' FROM pg_class WHERE oid = 'items'::regclass"); err != nil || done {
		return
	}
	execute(t, f.url, `BEGIN;
		LOCK TABLE items IN ACCESS EXCLUSIVE MODE;
		ALTER TABLE items RENAME TO items_old;
		CREATE TABLE items (LIKE items_old INCLUDING ALL) PARTITION BY HASH (workspace_id);
		CREATE TABLE items_0 PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 0);
		CREATE TABLE items_1 PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 1);
		INSERT INTO items SELECT * FROM items_old;
		DROP TABLE items_old;
		ALTER PUBLICATION listedge ADD TABLE items;
		COMMIT`)
}
