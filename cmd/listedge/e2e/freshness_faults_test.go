package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox/redistest"
)

// fault is something that happens to a fleet while it is written and read.
type fault struct {
	name    string
	lasts   time.Duration // of writing and reading, in all
	happens func(t *testing.T, f *fleet)
	hits    bool   // some answers must be hits
	forms   []form // ways to write; nil = usualForms
	loses   bool   // commits that were acknowledged, if Postgres crashes meanwhile
}

// Faults are those of Postgres, and those of Redis and of nodes, which need no standby.
// Each kind has a fleet, and both run at once.
var (
	faultsOfPostgres = []fault{
		{name: "a long write transaction", lasts: 2500 * time.Millisecond, hits: true, happens: func(t *testing.T, f *fleet) {
			tx := must1(connect(t, f.url).Begin(t.Context()))
			must1(tx.Exec(t.Context(), "INSERT INTO items (workspace_id, name) VALUES (gen_random_uuid(), 'open')"))
			time.Sleep(2 * time.Second)
			_ = tx.Rollback(context.Background())
		}},
		commitsWait,
		foreignTransaction(250_000),
		decodingLags,
		{name: "asynchronous writers", lasts: 2500 * time.Millisecond, loses: true, happens: func(t *testing.T, f *fleet) {
			f.setting(t, "wal_writer_delay", "10s")
			f.setting(t, "synchronous_commit", "off")
			time.Sleep(2 * time.Second)
			f.setting(t, "synchronous_commit", "on")
		}},
		{name: "transactions of 2,000 rows", lasts: 2500 * time.Millisecond, forms: []form{withManyRows(2_000), inPlace}, happens: func(*testing.T, *fleet) {}},
		{name: "ALTER TABLE with a rewrite", lasts: 2 * time.Second, happens: func(t *testing.T, f *fleet) {
			time.Sleep(500 * time.Millisecond)
			execute(t, f.url, "ALTER TABLE items ALTER COLUMN unit TYPE varchar(100)")
			execute(t, f.url, "ALTER TABLE items ADD COLUMN IF NOT EXISTS filler int DEFAULT (random() * 1000)::int")
			execute(t, f.url, "ALTER TABLE items ALTER COLUMN unit TYPE text")
		}},
		{name: "TRUNCATE of a table, then of a partition", lasts: 3 * time.Second, forms: append([]form{truncated, truncated, truncated}, usualForms...), happens: func(t *testing.T, f *fleet) {
			time.Sleep(1500 * time.Millisecond)
			f.partition(t)
		}},
		{name: "the standby frozen, then crashed", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
			time.Sleep(200 * time.Millisecond)
			_ = f.standby.Freeze()
			time.Sleep(1500 * time.Millisecond)
			_ = f.standby.Thaw()
			_ = f.standby.Kill(syscall.SIGQUIT)
			time.Sleep(200 * time.Millisecond)
			if err := f.standby.Restart(context.Background()); err != nil {
				t.Error(err)
			}
		}},
		{name: "one backend killed", lasts: 2 * time.Second, happens: func(t *testing.T, f *fleet) {
			time.Sleep(300 * time.Millisecond)
			var pid int
			must(connect(t, f.url).QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
			_ = syscall.Kill(pid, syscall.SIGKILL) // all other backends are restarted with it
		}},
		{name: "Postgres crashed", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
			time.Sleep(500 * time.Millisecond)
			_ = f.postgres.Kill(syscall.SIGQUIT)
			time.Sleep(500 * time.Millisecond)
			if err := f.postgres.Restart(context.Background()); err != nil {
				t.Error(err)
			}
		}},
	}

	faultsOfRedisAndNodes = []fault{
		noFault,
		{name: "Redis flushed", lasts: 2 * time.Second, happens: func(t *testing.T, f *fleet) {
			time.Sleep(500 * time.Millisecond)
			redistest.Client(t, f.redis).FlushAll(t.Context())
		}},
		redisFrozen,
		{name: "Redis restarted empty", lasts: 2500 * time.Millisecond, happens: func(t *testing.T, f *fleet) {
			time.Sleep(500 * time.Millisecond)
			_ = f.redis.Kill()
			time.Sleep(time.Second)
			if err := f.redis.Restart(context.Background()); err != nil {
				t.Error(err)
			}
		}},
		{name: "a node cut off from Redis", lasts: 2500 * time.Millisecond, happens: func(t *testing.T, f *fleet) {
			time.Sleep(300 * time.Millisecond)
			n := f.bystander(t)
			n.toRedis.Lose(true)
			time.Sleep(1500 * time.Millisecond)
			n.toRedis.Lose(false)
		}},
		{name: "the follower cut off from Redis", lasts: 3500 * time.Millisecond, happens: func(t *testing.T, f *fleet) {
			time.Sleep(300 * time.Millisecond)
			n := f.follower(t)
			n.toRedis.Lose(true)
			time.Sleep(2500 * time.Millisecond) // more than logPatience
			n.toRedis.Lose(false)
		}},
		{name: "the log trimmed under a node", lasts: 2 * time.Second, happens: func(t *testing.T, f *fleet) {
			n, client := f.bystander(t), redistest.Client(t, f.redis)
			before := n.metric(t, "listedge_freshness_resyncs_total", `cause="gap"`)
			n.signal(syscall.SIGSTOP)
			time.Sleep(time.Second)
			for _, log := range client.Keys(t.Context(), "listedge:{changes}:log:*").Val() {
				client.XTrimMaxLen(t.Context(), log, 1)
			}
			n.signal(syscall.SIGCONT)
			within(t, patience, "a gap", func() bool { return n.metric(t, "listedge_freshness_resyncs_total", `cause="gap"`) > before })
		}},
		{name: "the follower SIGSTOPped", lasts: 3500 * time.Millisecond, happens: func(t *testing.T, f *fleet) {
			n := f.follower(t)
			n.signal(syscall.SIGSTOP)
			time.Sleep(2500 * time.Millisecond)
			n.signal(syscall.SIGCONT)
		}},
		{name: "the follower SIGKILLed", lasts: 2 * time.Second, happens: func(t *testing.T, f *fleet) {
			n := f.follower(t)
			n.stopped = true
			n.signal(syscall.SIGKILL)
			began := time.Now()
			f.follower(t)
			t.Logf("followed again after %s", time.Since(began).Round(time.Millisecond))
		}},
	}

	noFault     = fault{name: "none", lasts: 2 * time.Second, hits: true, happens: func(*testing.T, *fleet) {}}
	commitsWait = fault{name: "commits wait for a standby", lasts: 2500 * time.Millisecond, happens: func(t *testing.T, f *fleet) { f.commitsWait(t, 2*time.Second) }}
	redisFrozen = fault{name: "Redis frozen", lasts: 2500 * time.Millisecond, happens: func(t *testing.T, f *fleet) {
		time.Sleep(300 * time.Millisecond)
		_ = f.redis.Freeze()
		time.Sleep(1500 * time.Millisecond)
		_ = f.redis.Thaw()
	}}
)

// foreignTransaction writes this many rows of another table, while the test's writers commit.
func foreignTransaction(rows int) fault {
	return fault{name: fmt.Sprintf("a foreign transaction of %d rows", rows), lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
		conn := connect(t, f.url)
		for _, sql := range []string{"CREATE TABLE IF NOT EXISTS huge (n int)", fmt.Sprintf("INSERT INTO huge SELECT generate_series(1, %d)", rows), "TRUNCATE huge"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Error(err)
			}
		}
	}}
}

// decodingLags stops the walsender now and then: what is committed meanwhile is
// visible long before it is published.
var decodingLags = fault{name: "decoding lags", lasts: 4 * time.Second, happens: func(t *testing.T, f *fleet) {
	conn := connect(t, f.url)
	for range 3 {
		var pid int
		must(conn.QueryRow(t.Context(), "SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE database = current_database()").Scan(&pid))
		if pid != 0 { // else the next follower is about to take it
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			time.Sleep(900 * time.Millisecond)
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		time.Sleep(300 * time.Millisecond)
	}
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
	o.forms = usualForms
	if x.forms != nil {
		o.forms = x.forms
	}
	if hits := o.run(t, x.name, x.lasts, func() { x.happens(t, o.fleet) }); x.hits && hits == 0 {
		t.Errorf("%s: no hits", x.name)
	}
	for i, n := range o.fleet.nodes {
		if n.stopped {
			o.fleet.nodes[i] = o.fleet.start(t)
		}
	}
}

// partition divides items into two partitions, unless it is divided already.
func (f *fleet) partition(t *testing.T) {
	t.Helper()
	var done bool
	if err := connect(t, f.url).QueryRow(t.Context(), "SELECT relkind = 'p' FROM pg_class WHERE oid = 'items'::regclass").Scan(&done); err != nil || done {
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

// commitsWait makes commits wait, repeatedly, for a standby that does not exist. They are in
// the WAL and published long before they are visible.
func (f *fleet) commitsWait(t *testing.T, d time.Duration) {
	t.Helper()
	conn := connect(t, f.url)
	set := func(standbys string) {
		for _, sql := range []string{"SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = '" + standbys + "'", "SELECT pg_reload_conf()"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Error(err)
			}
		}
	}
	defer set("")
	for ends := time.Now().Add(d); time.Now().Before(ends); time.Sleep(200 * time.Millisecond) {
		set("absent")
		time.Sleep(200 * time.Millisecond)
		set("")
	}
}
