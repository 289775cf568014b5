package main

import (
	"context"
	"syscall"
	"testing"
	"time"
)

// fault is something that happens to a fleet while it is written and read.
type fault struct {
	name    string
	lasts   time.Duration // of writing and reading, in all
	happens func(t *testing.T, f *fleet)
	hits    float64 // the least hit rate
	forms   []form  // how is written; nil = usualForms
}

// faults are those of FRESHNESS.md, and some more. Hit rates are above 90 %, and
// 0 % by a rule that keeps no page while a transaction is open; how far above
// depends on how many reads the machine has time for between two changes.
var faults = []fault{
	{name: "none", lasts: 3 * time.Second, hits: 0.5, happens: func(*testing.T, *fleet) {}},
	{name: "a long write transaction", lasts: 3 * time.Second, hits: 0.5, happens: func(t *testing.T, f *fleet) {
		tx, err := connect(t, f.url).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "INSERT INTO items (workspace_id, name) VALUES (gen_random_uuid(), 'open')"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2500 * time.Millisecond)
		_ = tx.Rollback(context.Background())
	}},
	{name: "commits wait for a standby", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) { f.commitsWait(t, 2*time.Second) }},
	{name: "ALTER TABLE with a rewrite", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
		time.Sleep(time.Second)
		execute(t, f.url, "ALTER TABLE items ALTER COLUMN unit TYPE varchar(100)")
		execute(t, f.url, "ALTER TABLE items ADD COLUMN IF NOT EXISTS filler int DEFAULT (random() * 1000)::int")
		execute(t, f.url, "ALTER TABLE items ALTER COLUMN unit TYPE text")
	}},
	{name: "TRUNCATE of a table, then of a partition", lasts: 4 * time.Second, forms: append([]form{truncated, truncated, truncated}, usualForms...), happens: func(t *testing.T, f *fleet) {
		time.Sleep(2 * time.Second)
		f.partition(t)
	}},
	{name: "Redis flushed", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
		time.Sleep(time.Second)
		f.client(t).FlushAll(t.Context())
	}},
	{name: "Redis frozen", lasts: 4 * time.Second, happens: func(t *testing.T, f *fleet) {
		time.Sleep(500 * time.Millisecond)
		_ = f.redis.Freeze()
		time.Sleep(2500 * time.Millisecond)
		_ = f.redis.Thaw()
	}},
	{name: "Redis restarted empty", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
		time.Sleep(time.Second)
		_ = f.redis.Kill()
		time.Sleep(time.Second)
		if err := f.redis.Restart(context.Background()); err != nil {
			t.Error(err)
		}
	}},
	{name: "a node cut off from Redis", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
		time.Sleep(500 * time.Millisecond)
		n := f.bystander(t)
		n.toRedis.lose(true)
		time.Sleep(2 * time.Second)
		n.toRedis.lose(false)
	}},
	{name: "the follower cut off from Redis", lasts: 5 * time.Second, happens: func(t *testing.T, f *fleet) {
		time.Sleep(500 * time.Millisecond)
		n := f.follower(t)
		n.toRedis.lose(true)
		time.Sleep(3 * time.Second)
		n.toRedis.lose(false)
	}},
	{name: "the log trimmed under a node", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
		n, client := f.bystander(t), f.client(t)
		before := n.metric(t, "listedge_freshness_resyncs_total", `cause="gap"`)
		n.signal(syscall.SIGSTOP)
		time.Sleep(time.Second)
		epoch := client.Get(t.Context(), "{listedge}:epoch").Val()
		if trimmed := client.XTrimMaxLen(t.Context(), "{listedge}:log:"+epoch, 1).Val(); trimmed == 0 {
			t.Error("nothing was trimmed")
		}
		n.signal(syscall.SIGCONT)
		within(t, patience, "a gap", func() bool { return n.metric(t, "listedge_freshness_resyncs_total", `cause="gap"`) > before })
	}},
	{name: "the standby frozen, then crashed", lasts: 4 * time.Second, happens: func(t *testing.T, f *fleet) {
		time.Sleep(500 * time.Millisecond)
		_ = f.standby.Freeze()
		time.Sleep(2 * time.Second)
		_ = f.standby.Thaw()
		_ = f.standby.Kill(syscall.SIGQUIT)
		time.Sleep(500 * time.Millisecond)
		if err := f.standby.Restart(context.Background()); err != nil {
			t.Error(err)
		}
	}},
	{name: "one backend killed", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
		time.Sleep(500 * time.Millisecond)
		var pid int
		if err := connect(t, f.url).QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // all other backends are restarted with it
	}},
	{name: "Postgres crashed", lasts: 5 * time.Second, happens: func(t *testing.T, f *fleet) {
		time.Sleep(time.Second)
		_ = f.postgres.Kill(syscall.SIGQUIT)
		time.Sleep(time.Second)
		if err := f.postgres.Restart(context.Background()); err != nil {
			t.Error(err)
		}
	}},
	{name: "the follower SIGSTOPped", lasts: 5 * time.Second, happens: func(t *testing.T, f *fleet) {
		n := f.follower(t)
		n.signal(syscall.SIGSTOP)
		time.Sleep(3500 * time.Millisecond)
		n.signal(syscall.SIGCONT)
	}},
	{name: "the follower SIGKILLed", lasts: 3 * time.Second, happens: func(t *testing.T, f *fleet) {
		n := f.follower(t)
		n.stopped = true
		n.signal(syscall.SIGKILL)
		began := time.Now()
		f.follower(t)
		t.Logf("followed again after %s", time.Since(began).Round(time.Millisecond))
	}},
}

// play has a fault happen under the oracle's eyes.
func (o *oracle) play(t *testing.T, x fault) {
	t.Helper()
	o.fleet.awaitFollowed(t)
	o.forms = usualForms
	if x.forms != nil {
		o.forms = x.forms
	}
	if hits := o.run(t, x.name, x.lasts, func() { x.happens(t, o.fleet) }); hits < x.hits {
		t.Errorf("%s: %.1f %% hits, and not %.0f", x.name, 100*hits, 100*x.hits)
	}
	for i, n := range o.fleet.nodes {
		if n.stopped {
			o.fleet.nodes[i] = o.fleet.start(t)
		}
	}
}

// partition has the items lie in two partitions, if they do not yet.
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

// commitsWait has commits wait for a standby that is not there, again and
// again: they are in the WAL, and published, long before anybody can see them.
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
