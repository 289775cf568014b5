package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
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

// What has to hold of rounds, and what shows it: the world, the clients of docs/clients (deploy, TestClientsKeepCopies), which are killed,
// too, and here the copies of both oracles. What is left is what they do while all servers change.

// listCopy is a copy of a list, kept by marks: the client of docs/clients in few lines. It asks the nodes in turn.
type listCopy struct {
	nodes []*testNode
	key   string
	path  string // with its filters and limit

	asked  int // requests
	cursor string
	mark   int
	rows   map[string]copied // by id

	first   bool // the last round was a whole list
	touched int  // rows and ids of the last round
	bytes   int  // of the answers of the last round
}

type copied struct {
	name any
	mark int
}

func newCopy(key, path string, nodes ...*testNode) *listCopy {
	return &listCopy{nodes: nodes, key: key, path: path, cursor: "changes", rows: map[string]copied{}}
}

// clone is what a client has stored.
func (c *listCopy) clone() *listCopy {
	stored := *c
	stored.rows = maps.Clone(c.rows)
	return &stored
}

// endedCursor is the length of a cursor with which a round has ended.
const endedCursor = 52

// noCache is the header of rounds that bring all that was committed before.
const noCache = "Cache-Control: no-cache"

// round brings the copy up to date, and returns how many pages that took.
func (c *listCopy) round(t *testing.T, headers ...string) (pages int) {
	t.Helper()
	c.first, c.touched, c.bytes = false, 0, 0
	for ended := false; !ended; pages++ {
		ended = c.step(t, headers...)
	}
	return pages
}

// step brings the next page, and reports whether the round ends with it.
func (c *listCopy) step(t *testing.T, headers ...string) (ended bool) {
	t.Helper()
	within(t, patience, "a page", func() bool {
		p, err := c.ask(headers...)
		if err != nil {
			t.Fatal(err)
		}
		if p != nil {
			ended = c.apply(p)
		}
		return p != nil
	})
	return ended
}

// trackedPage is a page of a round.
type trackedPage struct {
	pageBody
	covers, gone, cursor string
	bytes                int // of headers and body
}

// ask asks for a page; nil = the node is not there, or asks to wait. The error is an answer that no client may get.
func (c *listCopy) ask(headers ...string) (*trackedPage, error) {
	n := c.nodes[c.asked%len(c.nodes)]
	c.asked++
	a, err := n.try(http.MethodGet, c.path+"&cursor="+c.cursor, c.key, headers...)
	switch {
	case err != nil, a.StatusCode == http.StatusServiceUnavailable, a.StatusCode == http.StatusTooManyRequests:
		return nil, nil
	case a.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s of %s: %s", a.Status, c.path, a.body)
	}
	if err := conforms(a, document()); err != nil {
		return nil, err
	}
	var sent bytes.Buffer
	must(a.Header.Write(&sent))
	covers, says := strings.CutSuffix(a.Header.Get("List-Covers"), ", gone")
	p := &trackedPage{covers: covers, gone: a.Header.Get("List-Gone"), bytes: sent.Len() + len(a.body)}
	if err := json.Unmarshal(a.body, &p.pageBody); err != nil {
		return nil, err
	}
	target, relation, _ := strings.Cut(a.Header.Get("Link"), ">; rel=")
	_, p.cursor, _ = strings.Cut(target, "cursor=")
	longest, follows := endedCursor, relation == `"https://listedge.dev/rel/changes"`
	if p.Page.HasMore {
		longest, follows = 84, relation == `"next"` && *p.Page.NextCursor == p.cursor
	}
	if !follows || says != (p.gone != "") || len(p.cursor) > longest || p.covers == "" ||
		a.Header.Get("ETag") != "" || a.Header.Get("Cache-Control") != "private, no-store" {
		return nil, fmt.Errorf("headers %v, cursor %v", a.Header, p.Page.NextCursor)
	}
	return p, nil
}

// asks asks for pages until ctx ends.
func (c *listCopy) asks(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		p, err := c.ask()
		if err != nil {
			t.Error(err)
			return
		}
		if p != nil {
			c.apply(p)
		}
		pause(readPause)
	}
}

// apply is what a client does in one transaction. It reports whether the round has ended.
func (c *listCopy) apply(p *trackedPage) bool {
	none := p.covers == "none"
	if !none && !strings.Contains(p.covers, "after=") {
		c.mark++
		c.first = true
	}
	for _, row := range p.Data {
		c.rows[row["id"].(string)] = copied{row["name"], c.mark}
		c.touched++
	}
	for id := range strings.SplitSeq(p.gone, ", ") {
		delete(c.rows, strings.Trim(id, `"`))
		c.touched += min(1, len(id))
	}
	if !none && !strings.Contains(p.covers, "through=") {
		maps.DeleteFunc(c.rows, func(_ string, r copied) bool { return r.mark != c.mark })
	}
	c.cursor, c.bytes = p.cursor, c.bytes+p.bytes
	return !p.Page.HasMore
}

// mustBe brings the copy up to date, by one round. It is then what the database has of the workspace, and where the conditions hold.
func (c *listCopy) mustBe(t *testing.T, databaseURL, workspace string, conditions ...string) (pages int) {
	t.Helper()
	conn := connect(t, databaseURL)
	defer conn.Close(context.Background()) // the soak asks again and again
	where := strings.Join(append(conditions, "active AND workspace_id = $1"), " AND ")
	rows := must1(conn.Query(t.Context(), "SELECT id::text, name FROM items WHERE "+where, workspace))
	want := map[string]any{}
	for rows.Next() {
		var id, name string
		must(rows.Scan(&id, &name))
		want[id] = name
	}
	must(rows.Err())
	for len(c.cursor) > endedCursor { // a whole list that has begun before ends with what its beginning knew
		c.step(t)
	}
	pages = c.round(t, noCache)
	wrong := 0
	for id, r := range c.rows {
		if want[id] != r.name {
			if wrong++; wrong < 5 {
				t.Errorf("%s is %v, and not %v", id, r.name, want[id])
			}
		}
		delete(want, id)
	}
	if wrong+len(want) > 0 {
		t.Fatalf("%s: of %d rows %d are wrong, %d are not there", c.path, len(c.rows), wrong, len(want))
	}
	return pages
}

// A rolling deployment: each node knows after its start of which tables it has missed nothing, however long ago a client has asked.
// It prints what the next round costs clients, also on a node that finds no checkpoint.
func TestTrackingAcrossARollingDeployment(t *testing.T) {
	t.Parallel()
	f := &fleet{redis: sandboxtest.Redis(t), url: database(t), flags: lateProofs}
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
					pause(10 * time.Millisecond)
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

// In the middle of a round another primary takes over, which lacks what clients have seen. The nodes' URL names both servers, so they
// find the new primary by themselves.
func TestTheStandbyInTheURLTakesOver(t *testing.T) {
	t.Parallel()
	old, address := privateDatabaseWith(t, map[string]string{slotBound: ""}) // so the slot is temporary, and on the new primary persistent
	next := sandboxtest.Standby(t, old, nil)
	redis := sandboxtest.Redis(t)
	both := strings.Replace(address, old.Addr(), next.Addr()+","+old.Addr(), 1)
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
	within(t, patience, "the standby has it all", func() bool {
		const all = "SELECT count(*) = 90 FROM items WHERE workspace_id = $1 AND name LIKE 'Item %'"
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
	execute(t, address, "INSERT INTO items (workspace_id, name) VALUES ($1, 'behind')", workspace)
	for _, n := range nodes {
		within(t, patience, "a page of the new primary", func() bool { return strings.Contains(n.fresh("/v1/items", key), `"name":"behind"`) })
	}
}
