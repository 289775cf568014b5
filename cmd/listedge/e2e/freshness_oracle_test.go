package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The oracle of freshness. One writer per workspace counts up in two rows of
// one transaction; readers on every node record which values they get, and when.
// A response that is not marked as stale must not omit a commit that was
// acknowledged more than the bound before the request began; with no-cache, none that was acknowledged
// before, and it shows nothing older than such a response of before. In every other
// workspace rows lie between the two, so that the list has several pages and
// each of the two rows is on some of them only. Of each workspace a client keeps a copy by rounds, which
// asks the nodes in turn: in the end it is what the database has. Rows of other workspaces are what the oracle of pages judges.

const freshnessBound = 500 * time.Millisecond

// oracle runs writers and readers and collects what is wrong.
type oracle struct {
	fleet     *fleet
	histories []*history
	copies    []*listCopy // of the workspaces
	pages     *pages      // of other workspaces

	forms  []form       // the ways to write
	bursts bool         // the fault writes the rows of pages itself
	others atomic.Int64 // responses for rarely requested lists

	mu      sync.Mutex // guards all below
	worst   time.Duration
	answers map[string]int // by Cache-Status, to the list that all ask for
	wrong   []string
}

const (
	watchedWorkspaces = 4
	leastAnswers      = 50
	fillers           = 20
	pageOfMany        = 8 // rows: three pages
	// readPause is the longest pause of a reader: what is stale for longer than
	// the bound is seen many times, and fleets beside this one go on.
	readPause = 100 * time.Millisecond
)

// query is a page of a workspace's list, and what is on it at all times.
type query struct {
	path string
	rows int
	a, z bool // the workspace's first row, and its last
}

// rare is a query that was rarely requested before: a standby may have
// caught up.
func (h *history) rare(limit int) query {
	all := 2 + h.fillers
	return query{fmt.Sprintf("/v1/items?sort=name&limit=%d", limit), min(limit, all), true, limit >= all}
}

// watch makes the queries that all readers send, and sends each once.
func (h *history) watch(t *testing.T, n *testNode) {
	t.Helper()
	if len(h.queries) > 0 {
		return
	}
	if h.fillers == 0 {
		h.queries = []query{{"/v1/items?limit=50", 2, true, true}}
		return
	}
	path := fmt.Sprintf("/v1/items?sort=name&limit=%d", pageOfMany)
	for cursor := ""; ; {
		p := n.first(t, path+cursor, h.key).page(t)
		h.queries = append(h.queries, query{path + cursor, len(p.Data), cursor == "", !p.Page.HasMore})
		if !p.Page.HasMore {
			break
		}
		cursor = "&cursor=" + *p.Page.NextCursor
	}
	if len(h.queries) != 3 {
		t.Fatalf("%d pages: %+v", len(h.queries), h.queries)
	}
}

// writerPauses are the longest pauses of the workspaces' writers. Rare writes find more: if
// writes are frequent, the next change hides that one was missed.
var writerPauses = [watchedWorkspaces]time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 2 * time.Second}

func newOracle(t *testing.T, seed uint64, f *fleet) *oracle {
	t.Helper()
	t.Logf("seed %d", seed)
	o := &oracle{fleet: f, forms: usualForms, answers: map[string]int{}}
	for i := range watchedWorkspaces {
		h := &history{parking: uuid.NewString(), fillers: i % 2 * fillers}
		h.workspace, h.key = workspaceWithKey(t, f.url)
		execute(t, f.url, twoRows, h.workspace, 0)
		execute(t, f.url, "INSERT INTO items (workspace_id, name) SELECT $1, 'm' || n FROM generate_series(1, $2) n", h.workspace, h.fillers)
		now := time.Now()
		h.began, h.committed = []time.Time{now}, []time.Time{now}
		o.histories = append(o.histories, h)
		o.copies = append(o.copies, newCopy(h.key, fmt.Sprintf("/v1/items?limit=%d", pageOfMany)))
	}
	o.pages = newPages(t, seed, f.url)
	afterBound()
	return o
}

// read sends requests to one node until the test ends.
func (o *oracle) read(ctx context.Context, n *testNode, h *history) {
	client := &http.Client{Timeout: 10 * time.Second}
	for i := 0; ctx.Err() == nil; i++ {
		q := h.queries[i%len(h.queries)]
		usual := i%4 != 3
		if !usual {
			q = h.rare(2 + rand.IntN(40))
		}
		r, _ := http.NewRequest("GET", n.url+q.path, nil)
		r.Header.Set("X-API-Key", h.key)
		strict := i%4 == 1
		if strict {
			r.Header.Set("Cache-Control", "no-cache")
		}
		least, began := h.leastWith(strict), time.Now()
		response, err := client.Do(r)
		if err != nil {
			o.count("no answer")
			pause(readPause)
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		ended := time.Now()
		if err != nil || response.StatusCode != 200 {
			o.count(response.Status)
			pause(readPause)
			continue
		}
		status := cacheStatus(response.Header)
		if usual {
			o.count(status)
		} else {
			o.others.Add(1)
		}
		o.judge(h, q, shownPage{status, body, began, ended, strict, least})
		pause(readPause)
	}
}

func (o *oracle) count(what string) {
	o.mu.Lock()
	o.answers[what]++
	o.mu.Unlock()
}

// counted is the number of responses for the list that all readers request.
func (o *oracle) counted() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range o.answers {
		n += of
	}
	return n
}

// shown returns the value of the query's rows in a response, or what is wrong with it. It
// is empty if neither of the two rows should be on the page.
func (q *query) shown(body []byte) (v string, err error) {
	var p pageBody
	if err := json.Unmarshal(body, &p); err != nil || len(p.Data) != q.rows {
		return "", fmt.Errorf("%d rows and not %d: %s %w", len(p.Data), q.rows, body, err)
	}
	values := map[string]string{}
	for _, row := range p.Data {
		if name := row["name"].(string); name == "a" || name == "z" {
			values[name] = fmt.Sprint(row["stockOnHand"])
		}
	}
	a, hasA := values["a"]
	z, hasZ := values["z"]
	switch {
	case hasA != q.a || hasZ != q.z:
		return "", fmt.Errorf("not the rows of %+v: %s", q, body)
	case hasA && hasZ && a != z:
		return "", fmt.Errorf("half a transaction: %s and %s", a, z)
	case hasA:
		return a, nil
	}
	return z, nil
}

// shownPage is a response, and when it was asked for and came.
type shownPage struct {
	status       string
	body         []byte
	began, ended time.Time
	strict       bool // with no-cache
	least        int  // what it must show at least
}

// judge checks one response.
func (o *oracle) judge(h *history, q query, r shownPage) {
	text, err := q.shown(r.body)
	if err != nil {
		o.accuse("%v (%s)", err, r.status)
	}
	if text == "" {
		return
	}
	v, _ := strconv.Atoi(text)
	h.mu.Lock()
	defer h.mu.Unlock()
	if v >= len(h.began) || h.began[v].After(r.ended) {
		o.accuse("from the future: %d", v)
		return
	}
	if strings.Contains(r.status, "stale-if-error") {
		return
	}
	if r.strict {
		if h.strict = max(h.strict, v); v < r.least {
			o.accuse("with no-cache %d was shown, and before it %d (%s)", v, r.least, r.status)
		}
	}
	if v+1 >= len(h.committed) || h.committed[v+1].IsZero() {
		return
	}
	stale, bound := r.began.Sub(h.committed[v+1]), freshnessBound
	if r.strict {
		bound = 0
	} else if stale > 0 {
		o.mu.Lock()
		o.worst = max(o.worst, stale)
		o.mu.Unlock()
	}
	if stale > bound {
		o.accuse("%s after the commit of %d, %d was shown as fresh (%s, no-cache %t)", stale, v+1, v, r.status, r.strict)
	}
}

func (o *oracle) accuse(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.wrong) < 20 {
		o.wrong = append(o.wrong, fmt.Sprintf(format, args...))
	}
}

// judgeTheEnd checks that all nodes show the last value in all lists.
func (o *oracle) judgeTheEnd() {
	for _, h := range o.histories {
		want, queries := strconv.Itoa(h.last()), slices.Clone(h.queries)
		for limit := 2; limit < 42; limit += 6 {
			queries = append(queries, h.rare(limit))
		}
		for i, n := range o.fleet.nodes {
			for _, q := range queries {
				if n.stopped {
					break
				}
				a, err := n.try("GET", q.path, h.key)
				if err != nil || a.StatusCode != 200 || strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error") {
					continue // it is marked as stale
				}
				if v, err := q.shown(a.body); err != nil || v != want && (q.a || q.z) {
					o.accuse("after a quiet while node %d does not show %s at %s (%s): %v %s", i, want, q.path, a.Header.Get("Cache-Status"), err, a.body)
				}
			}
		}
	}
}

// afterBound waits until nothing may be shown that was changed before. No event tells: a node may
// omit a commit for so long, and need not.
func afterBound() { time.Sleep(freshnessBound) }

// judges waits until so long is over, and enough was answered meanwhile, however slow the machine.
func (o *oracle) judges(t *testing.T, d time.Duration) {
	t.Helper()
	began, enough := time.Now(), o.counted()+leastAnswers
	within(t, patience, "enough answers to judge by", func() bool { return time.Since(began) >= d && o.counted() >= enough })
}

// commits returns a wait until every writer has committed since now.
func (o *oracle) commits(t *testing.T) (wait func()) {
	t.Helper()
	var next []int
	for _, h := range o.histories {
		next = append(next, h.last()+1)
	}
	return func() {
		t.Helper()
		for i, h := range o.histories {
			within(t, patience, "a commit of each writer", func() bool { return h.isCommitted(next[i]) })
		}
	}
}

// run writes and reads while fault happens and for a while after it, then is quiet, and then
// every node must show the last value.
func (o *oracle) run(t *testing.T, name string, fault func()) (hitRate float64) {
	o.mu.Lock()
	o.worst, o.answers, o.wrong = 0, map[string]int{}, nil
	o.mu.Unlock()
	for _, h := range o.histories {
		h.watch(t, o.fleet.nodes[0])
	}
	writing, stopWriting := context.WithCancel(context.Background())
	reading, stopReading := context.WithCancel(context.Background())
	committed := o.commits(t)
	var writers, readers sync.WaitGroup
	for i, h := range o.histories {
		writers.Go(func() { h.write(writing, o.fleet.url, writerPauses[i], o.forms) })
		c := o.copies[i]
		c.nodes = slices.Concat(o.fleet.nodes[i%len(o.fleet.nodes):], o.fleet.nodes[:i%len(o.fleet.nodes)])
		readers.Go(func() { c.asks(reading, t) })
		seed, n := o.pages.random.Uint64(), c.nodes[0]
		if i < pageWriters && !o.bursts {
			writers.Go(func() { o.pages.write(writing, seed) })
		}
		if !n.stopped {
			readers.Go(func() { o.pages.read(reading, seed, n, readPause) })
		}
		for _, n := range o.fleet.nodes {
			if !n.stopped {
				readers.Go(func() { o.read(reading, n, h) })
			}
		}
	}
	fault()
	committed()
	o.judges(t, during)
	stopWriting()
	writers.Wait()
	afterBound()
	stopReading()
	readers.Wait()
	o.judgeTheEnd()
	o.pages.compare(t, o.fleet.running())
	for i, c := range o.copies {
		c.nodes = o.fleet.running()
		c.mustBe(t, o.fleet.url, o.histories[i].workspace)
	}
	hits, all := 0, o.counted()
	for status, n := range o.answers {
		if strings.HasPrefix(status, "listedge; hit") {
			hits += n
		}
	}
	hitRate = float64(hits) / float64(all)
	t.Logf("%-38s worst %8s  hits %5.1f %% of %d  %v", name, o.worst.Round(time.Millisecond), 100*hitRate, all, o.answers)
	for _, w := range o.wrong {
		t.Errorf("%s: %s", name, w)
	}
	for i, n := range o.fleet.nodes {
		if differ := n.mismatches(); !n.stopped && len(differ) > 0 {
			t.Errorf("%s, node %d: %q", name, i, differ)
		}
	}
	return hitRate
}

// history has what a workspace's writer wrote.
type history struct {
	workspace, key string
	parking        string     // a workspace of other rows
	queries        []query    // that all ask for
	fillers        int        // rows between the two, which nobody writes
	mu             sync.Mutex // guards all below
	began          []time.Time
	committed      []time.Time // zero while not known to be
	strict         int         // the last value that was shown with no-cache
}

// leastWith is what a request must show at least that begins now, by what others were shown with no-cache.
func (h *history) leastWith(strict bool) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !strict {
		return 0
	}
	return h.strict
}

func (h *history) isCommitted(v int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return v < len(h.committed) && !h.committed[v].IsZero()
}

func (h *history) last() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.committed) - 1
}

// write counts up until ctx ends, at random pauses up to the longest, in two rows of
// one transaction, in all the ways there are to write.
func (h *history) write(ctx context.Context, url string, longest time.Duration, forms []form) {
	var conn *pgx.Conn
	for ctx.Err() == nil {
		select { // the pace of the writer
		case <-ctx.Done():
			return
		case <-time.After(longest/10 + rand.N(longest)):
		}
		if conn == nil || conn.IsClosed() {
			conn, _ = pgx.Connect(ctx, url)
			if conn == nil {
				continue
			}
		}
		h.step(conn, url, forms[rand.IntN(len(forms))])
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

// step runs one transaction. If its commit fails, it may have happened all the same: writing
// the same value again is harmless.
func (h *history) step(conn *pgx.Conn, url string, write form) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	next := h.last() + 1
	h.mu.Lock()
	h.began, h.committed = append(h.began, time.Now()), append(h.committed, time.Time{})
	h.mu.Unlock()
	err := write(ctx, conn, h, next)
	for err != nil && ctx.Err() == nil {
		pause(readPause)
		if again, connectErr := pgx.Connect(ctx, url); connectErr == nil {
			_ = conn.Close(ctx)
			*conn = *again
			if err = h.abandon(ctx, conn); err == nil {
				err = inPlace(ctx, conn, h, next)
			}
		}
	}
	if err != nil {
		return // at the end nobody shows it
	}
	h.mu.Lock()
	h.committed[next] = time.Now()
	h.mu.Unlock()
}

// form is a way to write: it leaves the workspace with two rows that show v, of
// which one is its first by name and one its last.
type form func(ctx context.Context, conn *pgx.Conn, h *history, v int) error

// usualForms are those that a transaction may have. The page oracle writes rows in more ways.
var usualForms = []form{inPlace, inPlace, prepared}

func each(ctx context.Context, tx pgx.Tx, statements ...statement) error {
	for _, s := range statements {
		if _, err := tx.Exec(ctx, s.sql, s.args...); err != nil {
			return err
		}
	}
	return nil
}

type statement struct {
	sql  string
	args []any
}

func sql(text string, args ...any) statement { return statement{text, args} }

// count is the statement that counts the two rows up to v.
func (h *history) count(v int) statement {
	return sql("UPDATE items SET stock_on_hand = $2 WHERE "+theTwo, h.workspace, v)
}

const (
	twoRows = "INSERT INTO items (workspace_id, name, stock_on_hand) VALUES ($1, 'a', $2), ($1, 'z', $2)"
	theTwo  = "workspace_id = $1 AND name IN ('a', 'z')"
)

func inPlace(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return each(ctx, tx, h.count(v)) })
}

func (h *history) gid() string { return "writer of " + h.workspace }

// prepared commits in two phases, with time in between.
func prepared(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
	update := fmt.Sprintf("UPDATE items SET stock_on_hand = %d WHERE workspace_id = '%s' AND name IN ('a', 'z')", v, h.workspace)
	for _, text := range []string{"BEGIN", update, "PREPARE TRANSACTION '" + h.gid() + "'"} {
		if _, err := conn.Exec(ctx, text); err != nil {
			_ = conn.Close(ctx)
			return err
		}
	}
	pause(100 * time.Millisecond)
	_, err := conn.Exec(ctx, "COMMIT PREPARED '"+h.gid()+"'")
	return err
}

// abandon rolls back what a writer that was interrupted may have left prepared.
func (h *history) abandon(ctx context.Context, conn *pgx.Conn) error {
	var left bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = $1)", h.gid()).Scan(&left); err != nil || !left {
		return err
	}
	_, err := conn.Exec(ctx, "ROLLBACK PREPARED '"+h.gid()+"'")
	return err
}

// truncated empties the table, or the partition, that the rows are in, and puts
// all others back.
func truncated(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := each(ctx, tx, sql("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")); err != nil {
			return err
		}
		var table string
		if err := tx.QueryRow(ctx, "SELECT tableoid::regclass::text FROM items WHERE "+theTwo+" LIMIT 1", h.workspace).Scan(&table); err != nil {
			return err
		}
		two := strings.ReplaceAll(theTwo, "$1", "'"+h.workspace+"'")
		return each(ctx, tx, statement{sql: "CREATE TEMP TABLE others ON COMMIT DROP AS SELECT * FROM " + table + " WHERE NOT (" + two + ")"},
			statement{sql: "TRUNCATE " + table}, sql("INSERT INTO items SELECT * FROM others"), sql(twoRows, h.workspace, v))
	})
}

// withManyRows writes so many rows of another workspace in the same transaction,
// in place of those of the time before. One writer does at a time, and the others
// write as usual.
func withManyRows(n int) form {
	var one sync.Mutex
	return func(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
		if !one.TryLock() {
			return inPlace(ctx, conn, h, v)
		}
		defer one.Unlock()
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			return each(ctx, tx, sql("DELETE FROM items WHERE workspace_id = $1", h.parking),
				sql("INSERT INTO items (workspace_id, name) SELECT $1, 'many' FROM generate_series(1, $2)", h.parking, n), h.count(v))
		})
	}
}
