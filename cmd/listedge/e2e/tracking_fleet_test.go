package e2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// Rounds whose pages come from several nodes, which are not equally far.

// Scenarios 4, 5 and 6.
func TestTrackingFromAnyNode(t *testing.T) {
	t.Parallel()
	f := &fleet{redis: sandboxtest.Redis(t), in: items, url: database(t), flags: []string{"--freshness-bound", "5s"}}
	f.startNodes(t, 2)
	f.awaitFollowed(t)
	x, y := f.follower(t), f.bystander(t)
	workspace, key := workspaceWithKey(t, f.url)
	execute(t, f.url, `INSERT INTO items (workspace_id, name, created_at) SELECT $1, 'Item ' || g, '2026-01-01Z'::timestamptz + g * interval '1 s'
		FROM generate_series(1, 250) g`, workspace)
	set := func(name, condition string) {
		t.Helper()
		execute(t, f.url, "UPDATE items SET name = regexp_replace(name, ' =.*', '') || ' =' || $2 WHERE workspace_id = $1 AND "+condition, workspace, name)
	}
	const path = "/v1/items?limit=100"
	c := newCopy(key, path, x, y)
	c.mustBe(t, f.url, workspace)

	// A commit that began before a round and ends after it is in the next one.
	for range 3 {
		late := must1(connect(t, f.url).Begin(t.Context()))
		must1(late.Exec(t.Context(), "UPDATE items SET name = name || '+' WHERE workspace_id = $1 AND name LIKE 'Item 7%'", workspace))
		set("early", "name LIKE 'Item 3%'")
		c.mustBe(t, f.url, workspace)
		must(late.Commit(t.Context()))
		c.mustBe(t, f.url, workspace)
		if c.first {
			t.Error("a whole list")
		}
	}

	// y is 400 ms behind, which is a read of the log, and rows change that the round has passed.
	y.toRedis.DelayPiecesWith(":log:", 200*time.Millisecond)
	c.path, c.first = "/v1/items?limit=50", false
	set("a", "name ~ '[0-4]( |$)'")
	for ended := false; !ended; {
		ended = c.step(t)
		set("b", "name ~ '^Item (1|100|250)( |$)'")
	}
	c.mustBe(t, f.url, workspace)
	if c.first {
		t.Error("a whole list")
	}
	behind := newCopy(key, c.path, x, y)
	for ended := false; !ended; {
		ended = behind.step(t)
		set("c", "name ~ '^Item (1|100|250)( |$)'")
	}
	behind.mustBe(t, f.url, workspace)
	y.toRedis.Delay(0)

	// y does not know the last change of two rows. One was in the changes that y has, and x has passed it.
	c.path = path
	c.mustBe(t, f.url, workspace)
	set("early", "name ~ '^Item 3( |$)'")
	set("a", "name ~ '^Item 1?[0-9]?[0-9]( |$)' AND name !~ '^Item 3( |$)'") // two pages
	newCopy(key, path, y).mustBe(t, f.url, workspace)
	y.toRedis.Lose(true)
	set("late", "name ~ '^Item (3|100)( |$)'")
	whole := newCopy(key, path)
	both := []*listCopy{c, whole}
	for _, c := range both {
		c.nodes = []*testNode{x}
		if c.step(t, noCache) {
			t.Fatal("a round of one page")
		}
	}
	var asking sync.WaitGroup
	for _, c := range both {
		c.nodes = []*testNode{y}
		asking.Go(func() { // there is no answer, or none with less than x has shown
			if p, err := c.ask(); err != nil {
				t.Error(err)
			} else if p != nil {
				c.apply(p)
			}
		})
	}
	asking.Wait()
	y.toRedis.Lose(false)
	for _, c := range both {
		for len(c.cursor) > endedCursor {
			c.step(t)
		}
		late := 0
		for _, r := range c.rows {
			if r.name == "Item 100 =late" || r.name == "Item 3 =late" {
				late++
			}
		}
		if late != 2 {
			t.Errorf("a round has ended with %d of 2 changes that its first page knew", late)
		}
		c.nodes = []*testNode{x, y}
		c.mustBe(t, f.url, workspace)
	}
}

// A rolling deployment: each node knows after its start of which tables it has missed nothing, however long ago a client has asked.
// It prints what the next round costs clients, also on a node that finds no checkpoint.
func TestTrackingAcrossARollingDeployment(t *testing.T) {
	t.Parallel()
	f := &fleet{redis: sandboxtest.Redis(t), in: items, url: database(t), flags: lateProofs}
	f.startNodes(t, 3)
	f.awaitFollowed(t)
	const rows = 900
	type polling struct {
		*listCopy
		workspace, every string
		changed          bool // since its last round
	}
	var clients []polling
	for _, every := range []string{"hour", "minute"} {
		for _, changed := range []bool{false, true} {
			workspace, key := workspaceWithKey(t, f.url)
			execute(t, f.url, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || g FROM generate_series(1, $2::int) g", workspace, rows)
			c := polling{newCopy(key, "/v1/items?limit=100", f.nodes...), workspace, every, changed}
			c.mustBe(t, f.url, workspace)
			clients = append(clients, c)
		}
	}
	change := func(every string) {
		for _, c := range clients {
			if c.changed && c.every == every {
				execute(t, f.url, "UPDATE items SET name = name || '+' WHERE workspace_id = $1 AND name ~ '^Item .*50$'", c.workspace)
			}
		}
	}
	inRedis := redistest.Client(t, f.redis)
	keyOf := func(what string) (key string) {
		t.Helper()
		within(t, patience, what, func() bool {
			keys := inRedis.Keys(t.Context(), "listedge:{changes}:"+what+":*").Val()
			if len(keys) == 1 {
				key = keys[0]
			}
			return key != ""
		})
		return key
	}
	checkpoint, log := keyOf("checkpoint"), keyOf("log")
	stored := func() { // a checkpoint of all that has changed
		t.Helper()
		for range 2 {
			before := inRedis.Get(t.Context(), checkpoint).Val()
			within(t, patience, "a checkpoint", func() bool {
				now := inRedis.Get(t.Context(), checkpoint).Val()
				return now != "" && now != before
			})
		}
	}

	// An hour passes: the log does not have any more what was before.
	change("hour")
	for _, c := range clients[:2] {
		newCopy(c.key, c.path, f.follower(t)).mustBe(t, f.url, c.workspace) // it has the change
	}
	end := must1(inRedis.XInfoStream(t.Context(), log).Result()).LastGeneratedID
	stored()
	must(inRedis.XTrimMinID(t.Context(), log, end).Err())
	for _, c := range clients[2:] {
		c.mustBe(t, f.url, c.workspace)
	}
	change("minute")

	cost := func(on *testNode, with string) (first bool) { // of the client whose list has not changed for an hour
		t.Helper()
		for _, c := range slices.Backward(clients) {
			again := c.clone()
			again.nodes = []*testNode{on}
			took := again.mustBe(t, f.url, c.workspace)
			t.Logf("%-22s a poll every %-6s  %d rows changed: %d requests, %5.1f kB", with, c.every, map[bool]int{true: rows / 100}[c.changed], took,
				float64(again.bytes)/1000)
			first = again.first
			whole := c.every == "hour" && (c.changed || first)
			if again.first != whole || took != map[bool]int{false: 1, true: rows / 100}[whole] {
				t.Errorf("%d requests, whole list %t", took, again.first)
			}
		}
		return first
	}
	within(t, patience, "a node that finds no checkpoint", func() bool { // one may come between two looks
		done := make(chan struct{})
		var deleting sync.WaitGroup
		deleting.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					inRedis.Del(t.Context(), checkpoint)
					pause(time.Millisecond)
				}
			}
		})
		defer deleting.Wait()
		defer close(done)
		n := f.start(t)
		n.awaitFollowed(t)
		first := cost(n, "without a checkpoint:")
		n.signal(syscall.SIGTERM)
		<-n.ended
		return first
	})
	stored()
	for i, n := range f.nodes {
		f.nodes[i] = f.start(t)
		f.nodes[i].awaitFollowed(t)
		n.signal(syscall.SIGTERM)
		<-n.ended
	}
	for _, n := range f.nodes {
		if cost(n, "with a checkpoint:") {
			t.Error("a whole list, of which nothing has changed")
		}
	}
}

// Scenario 9: the same client code ends with the same copy whatever happens to nodes and servers. One client asks all the time.
func TestTrackingUnderFaults(t *testing.T) {
	t.Parallel()
	f := fleetOf(t)
	f.startNodes(t, 3)
	f.awaitFollowed(t)
	workspace, key := workspaceWithKey(t, f.url)
	insert := func() {
		t.Helper()
		execute(t, f.url, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || g FROM generate_series(1, 90) g", workspace)
	}
	insert()
	const path = "/v1/items?limit=20"
	c, always := newCopy(key, path, f.nodes...), newCopy(key, path, f.nodes...)
	c.mustBe(t, f.url, workspace)
	running, end := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	stop := func() { end(); asking.Wait() }
	defer stop()
	asking.Go(func() { always.asks(running, t) })
	for _, fault := range []struct {
		name    string
		happens func()
	}{
		{"none", func() {}},
		{"TRUNCATE", func() { execute(t, f.url, "TRUNCATE items"); insert() }},
		{"a purge of the workspace", func() { command(t, "purge", "--workspace", workspace, "--database-url", f.url) }},
		{"a purge", func() { command(t, "purge", "--all", "--database-url", f.url) }},
		{"ALTER TABLE", func() { execute(t, f.url, "ALTER TABLE items ALTER COLUMN name TYPE text USING name || ' rewritten'") }},
		{"Redis flushed", func() { redistest.Client(t, f.redis).FlushAll(t.Context()) }},
		{"the follower killed", func() {
			n := f.follower(t)
			n.stopped = true
			n.signal(syscall.SIGKILL)
		}},
		{"Redis restarted empty", func() {
			must(f.redis.Kill())
			execute(t, f.url, "UPDATE items SET name = name || '-' WHERE workspace_id = $1 AND name LIKE 'Item 2%'", workspace)
			must(f.redis.Restart(t.Context()))
		}},
		{"Postgres crashed", func() {
			must(f.postgres.Kill(syscall.SIGQUIT))
			must(f.postgres.Restart(t.Context()))
		}},
		{"all nodes killed", func() {
			stop()
			for _, n := range f.nodes {
				n.signal(syscall.SIGKILL)
				<-n.ended
			}
			execute(t, f.url, "DELETE FROM items WHERE workspace_id = $1 AND name LIKE 'Item 5%'", workspace)
			f.nodes = nil
			f.startNodes(t, 2)
			c.nodes, always.nodes = f.nodes, f.nodes
		}},
	} {
		t.Log(fault.name)
		execute(t, f.url, "UPDATE items SET name = name || '<' WHERE workspace_id = $1 AND name LIKE 'Item 1%'", workspace)
		fault.happens()
		execute(t, f.url, "UPDATE items SET name = name || '>' WHERE workspace_id = $1 AND name LIKE 'Item 3%'", workspace)
		execute(t, f.url, "DELETE FROM items WHERE id = (SELECT max(id::text)::uuid FROM items WHERE workspace_id = $1)", workspace)
		c.mustBe(t, f.url, workspace)
	}
	always.mustBe(t, f.url, workspace)
}

// Scenarios 9 and 12: in the middle of a round Redis hangs, then Postgres, and then another primary takes over, which lacks
// what clients have seen. No page is stale: there is none, until what it shows is proven.
func TestTrackingWhileServersAreAway(t *testing.T) {
	t.Parallel()
	old, address := privateDatabase(t)
	next := sandboxtest.Standby(t, old, nil)
	redis := sandboxtest.Redis(t)
	both := strings.Replace(address, old.Addr(), old.Addr()+","+next.Addr(), 1)
	nodes := []*testNode{startNode(t, both, "--redis-url", redis.URL()), startNode(t, both, "--redis-url", redis.URL())}
	workspace, key := workspaceWithKey(t, address)
	const path = "/v1/items?limit=20"
	change := func() {
		t.Helper()
		execute(t, address, "UPDATE items SET name = name || '+' WHERE workspace_id = $1", workspace)
	}
	execute(t, address, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || g FROM generate_series(1, 90) g", workspace)
	changed := newCopy(key, path, nodes...)
	changed.mustBe(t, address, workspace)
	for _, away := range []struct {
		name          string
		freeze, thaws func() error
	}{{"Redis", redis.Freeze, redis.Thaw}, {"Postgres", old.Freeze, old.Thaw}} {
		change()
		whole := newCopy(key, path, nodes...)
		if changed.step(t, noCache) || whole.step(t) {
			t.Fatal("rounds of one page")
		}
		must(away.freeze())
		afterBound()
		for _, c := range []*listCopy{changed, whole} {
			for range nodes {
				if p, err := c.ask(); p != nil || err != nil {
					t.Errorf("%s hangs: %+v, %v", away.name, p, err)
				}
			}
		}
		must(away.thaws())
		changed.mustBe(t, address, workspace)
		whole.mustBe(t, address, workspace)
	}
	within(t, patience, "the standby has it all", func() bool {
		const all = "SELECT count(*) = 90 FROM items WHERE workspace_id = $1 AND name LIKE '%++'"
		there, err := postgrestest.Value[bool](next.URL("listedge"), all, workspace)
		return err == nil && there
	})
	execute(t, next.URL("listedge"), "ALTER SYSTEM SET primary_conninfo = ''")
	execute(t, next.URL("listedge"), "SELECT pg_reload_conf()")
	within(t, patience, "the standby receives nothing more", func() bool {
		alone, err := postgrestest.Value[bool](next.URL("listedge"), "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
		return err == nil && alone
	})
	change()
	execute(t, address, "INSERT INTO items (workspace_id, name) VALUES ($1, 'lost')", workspace)
	whole := newCopy(key, path, nodes...)
	if changed.step(t, noCache) || whole.step(t, noCache) {
		t.Fatal("rounds of one page")
	}
	must(old.Kill(syscall.SIGQUIT))
	address = next.URL("listedge")
	execute(t, address, "SELECT pg_promote()")
	for _, c := range []*listCopy{changed, whole} {
		c.mustBe(t, address, workspace)
		if len(c.rows) != 90 {
			t.Errorf("%d rows", len(c.rows))
		}
	}
}
