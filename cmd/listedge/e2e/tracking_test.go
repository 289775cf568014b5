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
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// What has to hold of rounds, and the tests that show it, all with one client (TestTracking… each):
//
//	 1  a large list, nothing changed                  ALargeListCostsOneSmallRequest
//	 2  ten rows changed or removed                    ALargeListCostsOneSmallRequest, ARoundCostsOneRequest
//	 3  the first, the last, the only and every row    ARoundCostsOneRequest
//	 4  a commit that began before the round           FromAnyNode
//	 5  nodes that are 400 ms apart                    FromAnyNode
//	 6  a node that knows less than the one before     FromAnyNode
//	 7  created_at changes                             OfRowsThatMove, ARoundCostsOneRequest
//	 8  filters, deactivation, moves, the same id      ARoundCostsOneRequest
//	 9  nodes and servers fail, purge, TRUNCATE, ALTER UnderFaults, WhileServersAreAway
//	10  more than the memory holds                     BeyondTheMemory
//	11  clients that are killed, cursors sent twice    OfAClientThatIsKilled
//	12  pages that are stale, large or refused         WhileServersAreAway, OfLargeRows, OfARowThatCannotBeShown, RefusesWhatItMust

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

// Scenarios 1, 2, 3 and 8: on a node that follows, a round without a change is one request, and one with ten changes two at
// most; rows are removed, deactivated, moved, also to another workspace, and inserted again.
func TestTrackingARoundCostsOneRequest(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	stranger, _ := workspaceWithKey(t, url)
	n := startFollowed(t, url, lateProofs...)
	execute(t, url, `INSERT INTO items (workspace_id, name, created_at) SELECT $1, 'Item ' || g, '2026-01-01Z'::timestamptz + g * interval '1 s'
		FROM generate_series(1, 900) g`, workspace) // fewer than a change that does not name its rows
	c := newCopy(key, "/v1/items?limit=100", n)
	c.mustBe(t, url, workspace)
	goods := newCopy(key, "/v1/items?limit=100&type=goods", n)
	goods.mustBe(t, url, workspace, "type = 'GOODS'")
	if took := c.round(t); took != 1 || c.first {
		t.Errorf("nothing changed: %d requests, whole list %t", took, c.first)
	}
	for _, change := range []string{
		"UPDATE items SET name = 'changed ' || name WHERE workspace_id = $1 AND name ~ '^Item .*00$'",
		"DELETE FROM items WHERE workspace_id = $1 AND name ~ '11$'",
		"UPDATE items SET active = false WHERE workspace_id = $1 AND name ~ '22$'",
		"UPDATE items SET active = true WHERE workspace_id = $1 AND name ~ '22$'",
		"UPDATE items SET created_at = created_at + interval '1 year' WHERE workspace_id = $1 AND name ~ '33$'",
		"UPDATE items SET created_at = created_at - interval '2 years' WHERE workspace_id = $1 AND name ~ '33$'",
		"UPDATE items SET type = 'SERVICE' WHERE workspace_id = $1 AND name ~ '44$'",
		"UPDATE items SET type = 'GOODS' WHERE workspace_id = $1 AND name ~ '44$'",
		"UPDATE items SET workspace_id = '" + stranger + "' WHERE workspace_id = $1 AND name ~ '55$'",
		"INSERT INTO items (workspace_id, id, name) VALUES ($1, '00000000-0000-4000-8000-000000000001', 'new')",
		"DELETE FROM items WHERE workspace_id = $1 AND id = '00000000-0000-4000-8000-000000000001'",
		"INSERT INTO items (workspace_id, id, name) VALUES ($1, '00000000-0000-4000-8000-000000000001', 'again')",
	} {
		execute(t, url, change, workspace)
		for _, copy := range []*listCopy{c, goods} {
			kept := "true"
			if copy == goods {
				kept = "type = 'GOODS'"
			}
			copy.mustBe(t, url, workspace, kept)
			if copy.first {
				t.Errorf("%s: a whole list", change)
			}
		}
	}
	for _, which := range []string{"max", "min"} {
		execute(t, url, "DELETE FROM items WHERE workspace_id = $1 AND created_at = (SELECT "+which+"(created_at) FROM items WHERE workspace_id = $1)", workspace)
		c.mustBe(t, url, workspace)
	}
	execute(t, url, "DELETE FROM items WHERE workspace_id = $1", workspace)
	c.mustBe(t, url, workspace)
	if len(c.rows) != 0 {
		t.Errorf("%d rows of none", len(c.rows))
	}
}

// Scenario 12: a cursor that is damaged, of another workspace or filter; preconditions, HEAD and only-if-cached.
func TestTrackingRefusesWhatItMust(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	_, other := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || g FROM generate_series(1, 5) g", workspace)
	n := startFollowed(t, url, lateProofs...)
	c := newCopy(key, "/v1/items?limit=100", n)
	c.round(t)
	path := c.path + "&cursor=" + c.cursor
	for _, refused := range []struct {
		path, key string
		status    int
		header    string
		says      string
	}{
		{path, other, 400, "", "another workspace"}, {path + "&type=goods", key, 400, "", "another workspace"}, {path + "A", key, 400, "", "malformed"},
		{path + "&search=a", key, 400, "", "leave search out"}, {path + "&sort=name", key, 400, "", "leave sort out"},
		{path, key, 412, `If-Match: W/"a"`, "If-Match"},
	} {
		a := n.first(t, refused.path, refused.key, append([]string{"X-Request-Id: a"}, refused.header)[:1+min(1, len(refused.header))]...)
		if a.StatusCode != refused.status || !strings.Contains(string(a.body), refused.says) {
			t.Errorf("%s %s: %s %s", refused.path, refused.header, a.Status, a.body)
		}
	}
	if a := n.get(t, path, key, "Cache-Control: only-if-cached"); a.StatusCode != 200 || a.Header.Get("List-Covers") != "none" || len(a.page(t).Data) != 0 {
		t.Errorf("only-if-cached: %s %s", a.Status, a.body)
	}
	if a := n.request(t, http.MethodHead, path, key); a.StatusCode != 200 || a.Header.Get("List-Covers") != "none" || len(a.body) != 0 {
		t.Errorf("HEAD: %s", a.Status)
	}
	a := n.get(t, c.path+"&cursor=changes", key, "Accept-Encoding: gzip")
	plain, err := a.unpacked()
	if a.Header.Get("Content-Encoding") != "gzip" || err != nil || strings.Count(string(plain), `"name":"Item `) != 5 || a.Header.Get("List-Covers") != "all" {
		t.Errorf("gzip: %v, %s", a.Header, plain)
	}
}

// Scenarios 1 and 2 of a large list, on a node that has never held it.
func TestTrackingALargeListCostsOneSmallRequest(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, `INSERT INTO items (workspace_id, name, created_at) SELECT $1, 'Item ' || g, '2026-01-01Z'::timestamptz + g * interval '1 s'
		FROM generate_series(1, $2) g`, workspace, rowsOfALargeList)
	redis := []string{"--redis-url", sandboxtest.Redis(t).URL()}
	one, other := startFollowed(t, url, append(lateProofs, redis...)...), startFollowed(t, url, append(lateProofs, redis...)...)
	c := newCopy(key, "/v1/items?limit=100", one)
	if pages := c.mustBe(t, url, workspace); pages != rowsOfALargeList/100 {
		t.Errorf("%d pages", pages)
	}
	c.nodes = []*testNode{other}
	var p *trackedPage
	within(t, patience, "a page", func() bool { p = must1(c.ask()); return p != nil })
	if !c.apply(p) || p.covers != "none" || c.touched != rowsOfALargeList || p.bytes >= 1000 {
		t.Errorf("nothing changed: %+v", p)
	}
	for _, change := range []string{"UPDATE items SET name = name || '+'", "UPDATE items SET active = false", "DELETE FROM items"} {
		execute(t, url, change+" WHERE workspace_id = $1 AND name IN (SELECT 'Item ' || $2::int / 10 * g - $3::int FROM generate_series(1, 10) g)",
			workspace, rowsOfALargeList, len(change))
		if pages := c.mustBe(t, url, workspace); pages > 2 || c.first || c.touched != 10 {
			t.Errorf("%s of ten rows: %d pages, %d rows, whole list %t", change, pages, c.touched, c.first)
		}
	}
	if held := other.metric(t, "listedge_replica_rows"); held != 0 {
		t.Errorf("the other node holds %v rows", held)
	}
}

const rowsOfALargeList = 20_000

// Scenario 10: a list that the node has no room for, and more changes than it remembers.
func TestTrackingBeyondTheMemory(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, `INSERT INTO items (workspace_id, name, description) SELECT $1, 'Item ' || g, repeat('x', 500) FROM generate_series(1, 2700) g`, workspace)
	n := startFollowed(t, url, append(lateProofs, "--cache-memory", "1MiB")...)
	change := func(from, to int) {
		t.Helper()
		execute(t, url, "UPDATE items SET name = name || '+' WHERE workspace_id = $1 AND substring(name, '[0-9]+')::int BETWEEN $2 AND $3", workspace, from, to)
	}
	evict := func() {
		t.Helper()
		for limit := range 20 {
			n.first(t, fmt.Sprintf("/v1/items?sort=name&limit=%d", 81+limit), key).page(t)
		}
	}
	c := newCopy(key, "/v1/items?limit=100", n)
	c.mustBe(t, url, workspace)
	change(1, 400)
	evict()
	if n.metric(t, "listedge_replica_dropped_ranges_total", `cause="budget"`) == 0 {
		t.Error("nothing was evicted")
	}
	if c.mustBe(t, url, workspace); c.first || c.touched != 400 {
		t.Errorf("400 changes: %d rows, whole list %t", c.touched, c.first)
	}
	change(101, 500)
	for c.touched = 0; !c.step(t, noCache); {
		evict()
	}
	if c.first || c.touched != 400 {
		t.Errorf("400 changes, and evictions between the pages: %d rows, whole list %t", c.touched, c.first)
	}
	c.mustBe(t, url, workspace)
	for from := 1; from < 2700; from += 300 { // each transaction names its rows
		change(from, from+299)
	}
	c.mustBe(t, url, workspace)
	dropped, kept := n.metric(t, "listedge_tracking_pages_total", `cause="dropped"`), n.metric(t, "listedge_tracking_ids")
	if !c.first || dropped != 1 || kept == 0 || kept >= 2700 {
		t.Errorf("whole list %t, %v whole lists of what was dropped, %v of 2700 ids kept", c.first, dropped, kept)
	}
}

// Scenario 7: rows move in the list's order, forward and back over the position of a round, between its pages and between
// rounds, also to where a node holds nothing.
func TestTrackingOfRowsThatMove(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, `INSERT INTO items (workspace_id, name, created_at) SELECT $1, 'Item ' || g, '2026-01-01Z'::timestamptz + g * interval '1 s'
		FROM generate_series(1, 200) g`, workspace)
	redis := []string{"--redis-url", sandboxtest.Redis(t).URL()}
	one, other := startFollowed(t, url, append(lateProofs, redis...)...), startFollowed(t, url, append(lateProofs, redis...)...)
	const path = "/v1/items?limit=20"
	move := func() {
		t.Helper()
		for _, to := range []string{"(SELECT max(created_at) FROM items WHERE workspace_id = $1) + interval '1 s'",
			"(SELECT min(created_at) FROM items WHERE workspace_id = $1) - interval '1 s'", "'2026-01-01Z'::timestamptz + random() * interval '200 s'"} {
			for _, which := range []string{"created_at", "created_at DESC", "random()"} {
				execute(t, url, "UPDATE items SET created_at = "+to+", name = name || '+' WHERE id = "+
					"(SELECT id FROM items WHERE workspace_id = $1 ORDER BY "+which+" LIMIT 1)", workspace)
			}
		}
	}
	c := newCopy(key, path, one)
	c.mustBe(t, url, workspace)
	for _, nodes := range [][]*testNode{{one}, {one, other}} {
		whole := newCopy(key, path, one)
		c.nodes, whole.nodes = nodes, nodes
		for range 3 {
			move()
		}
		for _, c := range []*listCopy{c, whole} {
			for ended := false; !ended; {
				ended = c.step(t)
				move() // fewer rows than a page has
			}
			c.mustBe(t, url, workspace)
		}
		if c.first {
			t.Error("a whole list")
		}
	}
}

// Scenario 11: a client is killed after each page, before it has stored anything, or the cursor. It sends cursors twice. Rows
// change meanwhile. So does a client that was restored from what it had long ago.
func TestTrackingOfAClientThatIsKilled(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || g FROM generate_series(1, 300) g", workspace)
	n := startFollowed(t, url, lateProofs...)
	c := newCopy(key, "/v1/items?limit=50", n)
	changes := []string{
		"DELETE FROM items WHERE id = (SELECT max(id::text)::uuid FROM items WHERE workspace_id = $1)",
		"INSERT INTO items (workspace_id, name, created_at) VALUES ($1, 'old', '2000-01-01Z'), ($1, 'new', now())",
		"UPDATE items SET created_at = now() WHERE id = (SELECT min(id::text)::uuid FROM items WHERE workspace_id = $1)",
		"UPDATE items SET active = NOT active WHERE workspace_id = $1 AND name ~ '^Item .*5'",
	}
	var restored []*listCopy
	for turn := range 4 {
		for ended := false; !ended; {
			stored := c.clone()
			c.step(t)
			execute(t, url, changes[c.asked%len(changes)], workspace)
			switch {
			case turn == 0 || c.asked%4 < 2:
				asked := c.asked
				*c = *stored
				c.asked = asked
			default:
				c.cursor = stored.cursor // of rows that have changed: they may come twice
			}
			ended = c.step(t)
		}
		restored = append(restored, c.clone())
		execute(t, url, "UPDATE items SET name = name || '+' WHERE workspace_id = $1 AND name ~ '[0-4]'", workspace)
	}
	for _, c := range append(restored, c) {
		if c.mustBe(t, url, workspace); c.first {
			t.Error("a whole list")
		}
	}
}

// Scenario 12: a page ends at 4 MiB.
func TestTrackingOfLargeRows(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	n := startFollowed(t, url, lateProofs...)
	execute(t, url, `INSERT INTO items (workspace_id, name, sku, description) SELECT $1, 'Item ' || g, repeat('s', 65536), repeat('d', 65536)
		FROM generate_series(1, 40) g`, workspace)
	c := newCopy(key, "/v1/items?limit=100", n)
	if pages := c.mustBe(t, url, workspace); pages != 2 { // 5 MiB
		t.Errorf("%d pages of the whole list", pages)
	}
	for from := 1; from <= 40; from += 3 { // so few that a change names its rows
		execute(t, url, "UPDATE items SET name = name || '+' WHERE workspace_id = $1 AND substring(name, '[0-9]+')::int BETWEEN $2 AND $3", workspace, from, from+2)
	}
	if pages := c.mustBe(t, url, workspace); pages != 2 || c.first || c.touched != 40 {
		t.Errorf("%d pages of %d changed rows, whole list %t", pages, c.touched, c.first)
	}
}

// Scenario 12: a changed row that cannot be shown, or is too long to be read, fails no round whose filter hides it. Other
// rounds bring what changed before it, and what is left when it is mended.
func TestTrackingOfARowThatCannotBeShown(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, "ALTER TABLE items DROP CONSTRAINT items_usage_30_check, DROP CONSTRAINT items_usage_30_bound, DROP CONSTRAINT items_image_path_size")
	execute(t, url, `INSERT INTO items (workspace_id, name, type) SELECT $1, 'Item ' || g, CASE WHEN g % 2 = 0 THEN 'GOODS' ELSE 'SERVICE' END
		FROM generate_series(1, 20) g`, workspace)
	execute(t, url, "INSERT INTO items (workspace_id, name, image_path, created_at) VALUES ($1, 'Long', repeat('x', 6000000), '2000-01-01Z')", workspace)
	n := startFollowed(t, url, lateProofs...)
	services, all := newCopy(key, "/v1/items?limit=5&type=services", n), newCopy(key, "/v1/items?limit=5", n)
	services.mustBe(t, url, workspace, "type = 'SERVICE'")
	fails := func(c *listCopy, why string) {
		t.Helper()
		within(t, patience, why, func() bool {
			p, err := c.ask(noCache)
			if p != nil {
				c.apply(p)
			}
			return err != nil && strings.HasPrefix(err.Error(), "500")
		})
	}
	fails(all, "the whole list ends before the long row")
	if len(all.rows) != 20 {
		t.Errorf("%d rows before the long one", len(all.rows))
	}
	execute(t, url, "UPDATE items SET image_path = NULL WHERE workspace_id = $1 AND name = 'Long'", workspace)
	all.mustBe(t, url, workspace)
	for i, change := range []struct {
		breaks []string
		mends  string
	}{
		{[]string{"UPDATE items SET usage_30 = 'NaN' WHERE workspace_id = $1 AND name = 'Item 4'"},
			"UPDATE items SET usage_30 = 1 WHERE workspace_id = $1 AND name = 'Item 4'"},
		{[]string{"UPDATE items SET image_path = repeat('x', 6000000) WHERE workspace_id = $1 AND name = 'Long'", // which names no row
			"UPDATE items SET sku = 'a' WHERE workspace_id = $1 AND name = 'Long'"},
			"UPDATE items SET image_path = NULL WHERE workspace_id = $1 AND name = 'Long'"},
	} {
		execute(t, url, "UPDATE items SET name = name || '+' WHERE workspace_id = $1 AND name ~ '^Item 6'", workspace)
		for _, sql := range change.breaks {
			execute(t, url, sql, workspace)
			services.mustBe(t, url, workspace, "type = 'SERVICE'")
		}
		if services.first {
			t.Errorf("%s: a whole list", change.breaks)
		}
		fails(all, change.breaks[0])
		if !slices.ContainsFunc(slices.Collect(maps.Values(all.rows)), func(r copied) bool { return r.name == "Item 6"+strings.Repeat("+", i+1) }) {
			t.Errorf("%s: what changed before it has not come", change.breaks)
		}
		execute(t, url, change.mends, workspace)
		all.mustBe(t, url, workspace)
	}
}
