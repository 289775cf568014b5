package origin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/lists"
	"listedge/internal/page"
	"listedge/origin/postgres"
)

// How pages are read, by the server's own account: auto_explain reports the plan
// and the cost of every statement that Fetch sends, in the sessions that a
// node opens. Nothing is explained that was not run, or run otherwise.

// plan is a node of a plan as EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) has it.
type plan struct {
	Type         string  `json:"Node Type"`
	Index        string  `json:"Index Name"`
	IndexCond    string  `json:"Index Cond"`
	Relation     string  `json:"Relation Name"`
	Rows         float64 `json:"Actual Rows"`
	Loops        float64 `json:"Actual Loops"`
	Filtered     float64 `json:"Rows Removed by Filter"`
	Rechecked    float64 `json:"Rows Removed by Index Recheck"`
	Hit          int     `json:"Shared Hit Blocks"`
	Read         int     `json:"Shared Read Blocks"`
	Plans        []*plan `json:"Plans"`
	text         string
	buffers      int
	usedIndexes  map[string]float64 // rows read through each
	visitedNodes map[string]bool    // that were executed
}

// summarise adds up what was executed of the plan.
func (p *plan) summarise() *plan {
	p.usedIndexes, p.visitedNodes = map[string]float64{}, map[string]bool{}
	p.buffers = p.Hit + p.Read // a node's include its children's
	var walk func(n *plan)
	walk = func(n *plan) {
		if n.Loops > 0 {
			p.visitedNodes[n.Type] = true
			if n.Index != "" {
				p.usedIndexes[n.Index] += n.Loops * (n.Rows + n.Filtered + n.Rechecked)
			}
		}
		for _, child := range n.Plans {
			walk(child)
		}
	}
	walk(p)
	return p
}

// explained is an Origin whose sessions explain what they do.
type explained struct {
	origin *Origin
	plans  chan *plan
}

func explain(t testing.TB, url string) *explained {
	t.Helper()
	e := &explained{plans: make(chan *plan, 16)}
	db := openDatabase(t, postgres.Options{URL: url, Connections: 1})
	config := db.Pages.Pool.Config()
	config.ConnConfig.ConnectTimeout, config.PingTimeout = patience, patience
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "client_min_messages": "log",
		"auto_explain.log_min_duration": "0", "auto_explain.log_analyze": "on", "auto_explain.log_buffers": "on",
		"auto_explain.log_timing": "off", "auto_explain.log_format": "json",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		_, text, ok := strings.Cut(n.Message, "plan:\n")
		if !ok || strings.Contains(text, "pg_backend_pid") { // the session's settings
			return
		}
		var explained struct{ Plan *plan }
		if err := json.Unmarshal([]byte(text), &explained); err != nil {
			t.Errorf("%v in %s", err, text)
			return
		}
		explained.Plan.text = text
		e.plans <- explained.Plan.summarise()
	}
	pool := must1(pgxpool.NewWithConfig(context.Background(), config))
	t.Cleanup(pool.Close)
	// The one connection is made here: on a busy machine it takes longer than a page may wait.
	eventually(t, "a connection", func() bool { return pool.Ping(context.Background()) == nil })
	db.Pages.Pool = pool
	e.origin = New(db, nil)
	return e
}

// fetch returns the page's ids and how the server came by them.
func (e *explained) fetch(t testing.TB, q page.Query) ([]string, *plan) {
	t.Helper()
	page := fetch(t, e.origin, q)
	var ids []string
	for _, raw := range page.rows {
		ids = append(ids, idOf(t, raw))
	}
	select {
	case p := <-e.plans:
		return ids, p
	default:
		t.Fatal("the server explained nothing")
		return nil, nil
	}
}

const (
	bigRows    = 60_000
	bigMatches = 40 // rows with "needle"
)

// buildBigDatabase has one large workspace among small ones, never analysed.
func buildBigDatabase(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	// The indexes are quicker to build at the end than row by row.
	rows := must1(conn.Query(context.Background(), `SELECT indexdef FROM pg_indexes WHERE tablename IN ('items', 'contacts') AND indexname !~ 'pkey$'`))
	indexes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(indexes) == 0 {
		t.Fatalf("%d indexes, %v", len(indexes), err)
	}
	for _, definition := range indexes {
		exec(t, conn, "DROP INDEX "+strings.Fields(definition)[2])
	}
	exec(t, conn, `INSERT INTO items (workspace_id, id, name, type, sku, description, cost_price, track_stock, stock_on_hand, reorder_point, active, created_at)
		SELECT $1, md5(n::text)::uuid, left(md5((n * 7)::text), 6) || (ARRAY[' Product', ' product', ' PRODUCT', ' other'])[1 + n / 7 % 4],
		       CASE WHEN n % 25 = 0 THEN 'SERVICE' ELSE 'GOODS' END, 'SKU-' || n % 20000, CASE WHEN n % $3 = 7 THEN 'a needle in it' ELSE 'hay' END,
		       n % 100, n % 2 = 0, n % 50, CASE WHEN n % 4 = 0 THEN 3 END, n % 97 <> 0,
		       '2026-01-01Z'::timestamptz + (n * 7919 % $2) * interval '1 second'
		FROM generate_series(1, $2) n`, ourWorkspace, bigRows, bigRows/bigMatches)
	exec(t, conn, `INSERT INTO items (workspace_id, id, name, type, track_stock, reorder_point, description)
		SELECT md5((n % 20)::text)::uuid, md5(n::text)::uuid, 'Product needle ' || n, 'SERVICE', true, 5, 'needle' FROM generate_series(1, 10000) n`)
	exec(t, conn, `INSERT INTO contacts (workspace_id, id, name, email, is_customer, is_supplier, created_at)
		SELECT $1, md5(n::text)::uuid, 'Company ' || left(md5((n * 7)::text), 6), CASE WHEN n % 1000 = 7 THEN 'needle@example.com' END, true, n % 25 = 0,
		       '2026-01-01Z'::timestamptz + (n * 7919 % 20000) * interval '1 second'
		FROM generate_series(1, 20000) n`, ourWorkspace)
	exec(t, conn, strings.Join(indexes, ";"))
	// CREATE INDEX has counted the rows; a table that only ever grew is not counted.
	exec(t, conn, "UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relname ~ '^(items|contacts)'")
}

// behind is the position after so many rows of the list.
func behind(t testing.TB, conn *pgx.Conn, q page.Query, rows int) lists.Position {
	t.Helper()
	var (
		id   uuid.UUID
		name string
		at   int64
	)
	err := conn.QueryRow(context.Background(), fmt.Sprintf(
		`SELECT id, name_key(name), (extract(epoch FROM created_at) * 1000000)::bigint FROM %s WHERE workspace_id = $1 AND active%s ORDER BY %s OFFSET $2 LIMIT 1`,
		q.Collection, q.Collection.Where(q.Filter), q.Sort.SQL()), q.Workspace, rows-1).Scan(&id, &name, &at)
	must(err)
	return (&lists.Row{ID: id, CreatedAt: at}).SetTexts(name, "").Position(q.Sort)
}

func TestPagesCostTheSameHoweverDeepTheyLie(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	buildBigDatabase(t, conn)
	t.Run("never analysed", func(t *testing.T) { checkPlans(t, url, conn) })
	exec(t, conn, "ANALYZE")
	t.Run("analysed", func(t *testing.T) { checkPlans(t, url, conn) })
}

func checkPlans(t *testing.T, url string, conn *pgx.Conn) {
	e := explain(t, url)
	const limit = 50
	for _, list := range []struct {
		page.Query
		index string
		deep  int // rows before a page deep in the list
	}{
		{page.Query{Sort: lists.ByCreatedAt}, "items_by_created_at", 600 * limit},
		{page.Query{Sort: lists.ByName}, "items_by_name", 600 * limit},
		{page.Query{Sort: lists.ByCreatedAt, Filter: lists.Low}, "items_low_by_created_at", 600},
		{page.Query{Sort: lists.ByName, Filter: lists.Low}, "items_low_by_name", 600},
		{page.Query{Sort: lists.ByCreatedAt, Filter: lists.Services}, "items_services_by_created_at", 1200},
		{page.Query{Sort: lists.ByName, Filter: lists.Services}, "items_services_by_name", 1200},
		{page.Query{Sort: lists.ByCreatedAt, Collection: lists.Contacts}, "contacts_by_created_at", 15000},
		{page.Query{Sort: lists.ByName, Collection: lists.Contacts}, "contacts_by_name", 15000},
		{page.Query{Sort: lists.ByCreatedAt, Collection: lists.Contacts, Filter: lists.Suppliers}, "contacts_suppliers_by_created_at", 500},
		{page.Query{Sort: lists.ByName, Collection: lists.Contacts, Filter: lists.Suppliers}, "contacts_suppliers_by_name", 500},
	} {
		q := list.Query
		q.Workspace, q.Limit = ourWorkspace, limit
		for _, deep := range []int{0, list.deep} {
			if q.After = ""; deep > 0 {
				q.After = behind(t, conn, q, deep)
			}
			e.fetch(t, q) // the first of its kind on the connection
			shape, _ := shapeOf(&q)
			ids, p := e.fetch(t, q)
			switch {
			case len(ids) != limit:
				t.Errorf("%s behind %d: %d rows", describe(q), deep, len(ids))
			case len(p.usedIndexes) != 1 || p.usedIndexes[list.index] == 0 || p.visitedNodes["Sort"] || p.visitedNodes["Seq Scan"] || p.visitedNodes["Bitmap Heap Scan"]:
				t.Errorf("%s behind %d is not read by %s:\n%s", describe(q), deep, list.index, p.text)
			case p.usedIndexes[list.index] > float64(shape.rows(q.Limit)):
				t.Errorf("%s behind %d reads %v rows", describe(q), deep, p.usedIndexes[list.index])
			case p.buffers > 2*shape.rows(q.Limit):
				t.Errorf("%s behind %d touches %d blocks", describe(q), deep, p.buffers)
			}
		}
	}

	// Filters that most rows pass walk the whole list's index.
	for _, q := range []page.Query{
		{Filter: lists.Goods}, {Filter: lists.Goods, Sort: lists.ByName}, {Filter: lists.Tracked}, {Filter: lists.Tracked, Sort: lists.ByName},
		{Collection: lists.Contacts, Filter: lists.Customers}, {Collection: lists.Contacts, Filter: lists.Customers, Sort: lists.ByName},
	} {
		q.Workspace, q.Limit = ourWorkspace, limit
		index := fmt.Sprintf("%s_by_%s", q.Collection, [...]string{"created_at", "name"}[q.Sort])
		if _, p := e.fetch(t, q); len(p.usedIndexes) != 1 || p.usedIndexes[index] == 0 || p.usedIndexes[index] > 4*limit || p.visitedNodes["Sort"] {
			t.Errorf("%s reads %v:\n%s", describe(q), p.usedIndexes, p.text)
		}
	}

	for _, sort := range []lists.Order{lists.ByCreatedAt, lists.ByName} {
		order := [...]string{"created_at", "name"}[sort]
		for _, stock := range []lists.Flags{0, lists.Tracked} {
			q := page.Query{Workspace: ourWorkspace, Sort: sort, Filter: stock, Search: "PRODUCT", Limit: limit}
			e.fetch(t, q)
			for _, deep := range []int{0, 15_000} {
				if q.After = ""; deep > 0 {
					q.After = behind(t, conn, q, deep)
				}
				ids, p := e.fetch(t, q)
				if len(ids) != limit || p.usedIndexes["items_by_grams"] > 0 {
					t.Errorf("%s behind %d: %d rows through the index of grams, which many rows match:\n%s", describe(q), deep, len(ids), p.text)
				}
				// Three in four have the term and half are tracked.
				if read := p.usedIndexes["items_by_"+order]; sort == lists.ByCreatedAt && read > 5*limit || read > searchWalk {
					t.Errorf("%s behind %d reads %v rows for a page of %d", describe(q), deep, read, limit)
				}
			}
		}

		for _, c := range lists.All {
			matches := map[lists.Collection]float64{lists.Items: bigMatches, lists.Contacts: 20}[c]
			q := page.Query{Workspace: ourWorkspace, Collection: c, Sort: sort, Search: "needle", Limit: limit}
			ids, p := e.fetch(t, q)
			list, index := fmt.Sprintf("%s_by_%s", c, order), fmt.Sprintf("%s_by_grams", c)
			if len(ids) == 0 || float64(len(ids)) > matches || len(p.usedIndexes) != 2 || p.visitedNodes["Seq Scan"] {
				t.Errorf("%s: %d rows through %v:\n%s", describe(q), len(ids), p.usedIndexes, p.text)
			}
			if p.usedIndexes[list] > searchGlance || p.usedIndexes[index] == 0 || p.usedIndexes[index] > matches {
				t.Errorf("%s reads %v:\n%s", describe(q), p.usedIndexes, p.text)
			}
			if p.buffers > searchGlance*3 {
				t.Errorf("%s touches %d blocks", describe(q), p.buffers)
			}
		}

		// One row in eighteen matches: too few to fill the page in the first 500 rows, but enough to
		// read on in list order.
		q := page.Query{Workspace: ourWorkspace, Sort: sort, Search: "SKU-19", Limit: limit}
		if ids, p := e.fetch(t, q); len(ids) != limit || p.usedIndexes["items_by_grams"] > 0 ||
			p.usedIndexes["items_by_"+order] <= searchGlance || p.usedIndexes["items_by_"+order] > searchGlance+searchWalk {
			t.Errorf("%s: %d rows through %v:\n%s", describe(q), len(ids), p.usedIndexes, p.text)
		}
	}

	// A term without a gram that many rows match: no more than it needs.
	if ids, p := e.fetch(t, page.Query{Workspace: ourWorkspace, Search: "pr", Limit: limit}); len(ids) != limit || p.usedIndexes["items_by_created_at"] > 5*limit {
		t.Errorf("a short term reads %v:\n%s", p.usedIndexes, p.text)
	}
}

// TestPlansAreTheSameWhateverTheServerKnows asks for a page of each kind, and for the check of a node that
// starts, while the planner knows nothing, the truth, or what was true once. It judges each part of a plan, also
// parts that were not executed: no list is read but by its own index, and none is searched but by the index of grams.
func TestPlansAreTheSameWhateverTheServerKnows(t *testing.T) {
	t.Parallel()
	url := newDatabase(t) // of a server without autovacuum
	conn := connect(t, url)
	check := func(state string) {
		t.Run(state, func(t *testing.T) { checkEveryPlan(t, url) })
	}
	check("no rows, never analysed")
	for _, index := range []string{"items_by_grams", "contacts_by_grams"} { // four times the default: it is never emptied on the way
		exec(t, conn, "ALTER INDEX "+index+" SET (gin_pending_list_limit = 16384)")
	}

	const names = "SELECT 'aaaaaaaa-0000-4000-8000-000000000001'::uuid, n, 'Name ' || n FROM generate_series(1, 500) n UNION ALL " +
		"SELECT md5((n % 20)::text)::uuid, n, 'Name ' || n FROM generate_series(1, 100) n"
	exec(t, conn, `INSERT INTO items (workspace_id, name, description, type, track_stock, reorder_point)
		SELECT w, name, (SELECT string_agg(md5(n::text || k), ' ') FROM generate_series(1, 240) k), 'SERVICE', true, 1 FROM (`+names+`) rows (w, n, name)`)
	exec(t, conn, `INSERT INTO contacts (workspace_id, name, tin, is_supplier)
		SELECT w, name, (SELECT string_agg(md5(n::text || k), ' ') FROM generate_series(1, 240) k), true FROM (`+names+`) rows (w, n, name)`)
	check("texts of 8 kB wait in the pending lists, never analysed")
	exec(t, conn, "ANALYZE")
	check("and analysed")

	// The indexes of few rows are longer than those of all.
	exec(t, conn, "UPDATE items SET usage_30 = 1; UPDATE contacts SET phone = '1'")
	for _, index := range []string{"items_by_created_at", "items_by_name", "contacts_by_created_at", "contacts_by_name"} {
		exec(t, conn, "REINDEX INDEX "+index)
	}
	exec(t, conn, "ANALYZE")
	check("all rows are services, low and suppliers")
	exec(t, conn, "UPDATE items SET active = false; UPDATE contacts SET active = false")
	exec(t, conn, "ANALYZE")
	exec(t, conn, "UPDATE items SET active = true; UPDATE contacts SET active = true")
	check("no row was active")
	for _, index := range []string{"items_by_grams", "contacts_by_grams"} {
		var pages int
		if must(conn.QueryRow(t.Context(), "SELECT gin_clean_pending_list($1::regclass)", index).Scan(&pages)); pages < 512 {
			t.Errorf("only %d pages were pending of %s", pages, index)
		}
	}
	check("no list is pending")
	exec(t, conn, "DELETE FROM items; DELETE FROM contacts")
	exec(t, conn, "VACUUM ANALYZE")
	exec(t, conn, `INSERT INTO items (workspace_id, name) SELECT w, name FROM (`+names+`) rows (w, n, name)`)
	exec(t, conn, `INSERT INTO contacts (workspace_id, name) SELECT w, name FROM (`+names+`) rows (w, n, name)`)
	check("there was no row")
}

// checkEveryPlan fetches a page of every shape.
func checkEveryPlan(t *testing.T, url string) {
	e := explain(t, url)
	shapes := 0
	for _, c := range lists.All {
		filters := []lists.Flags{0}
		for _, f := range c.Filters() {
			for _, chosen := range slices.Clone(filters) {
				for _, v := range f.Values {
					filters = append(filters, chosen|v.Flag)
				}
			}
		}
		for _, sort := range c.Orders() {
			for _, filter := range filters {
				for _, search := range []string{"", "zq", "zzqx"} {
					q := page.Query{Workspace: ourWorkspace, Collection: c, Sort: sort, Filter: filter, Search: search, Limit: 50}
					if filter != 0 { // a plan is for any workspace, and a small one is read sooner
						q.Workspace = uuid.MustParse("c4ca4238-a0b9-2382-0dcc-509a6f75849b") // md5 of 1
					}
					for _, q.After = range []lists.Position{"", (&lists.Row{CreatedAt: 1 << 60}).SetTexts("A", "").Position(sort)} {
						_, p := e.fetch(t, q)
						if p.mustReadBy(t, q); t.Failed() {
							return // one plan says enough
						}
						shapes++
					}
				}
			}
		}
	}
	must(e.origin.Check(t.Context()))
	for _, c := range lists.All {
		for _, sort := range c.Orders() {
			q := page.Query{Collection: c, Sort: sort, Search: "none", After: "a position"}
			(<-e.plans).mustReadBy(t, q)
		}
	}
	if want := 2 * 2 * 3 * (3*3 + 3); shapes != want {
		t.Errorf("%d shapes of %d", shapes, want)
	}
}

// mustReadBy fails unless each scan of the query's table is by the index that its list has: of
// rows that a filter usually keeps few of, the index of those.
func (p *plan) mustReadBy(t *testing.T, q page.Query) {
	t.Helper()
	kept := map[bool]string{q.Filter&lists.Services != 0: "_services", q.Filter&lists.Suppliers != 0: "_suppliers"}[true]
	if q.Filter&lists.Low != 0 {
		kept = "_low"
	}
	index := fmt.Sprintf("%s%s_by_%s", q.Collection, kept, [...]string{"created_at", "name"}[q.Sort])
	lists, grams, sorts := 0, 0, 0
	var judge func(n *plan) bool
	judge = func(n *plan) bool {
		ok := true
		switch {
		case n.Type == "Sort" || n.Type == "Incremental Sort":
			sorts++
		case n.Type == "Bitmap Index Scan": // of the whole list, or of what it says: its heap scan is the parent
			grams++
			ok = n.Index == fmt.Sprintf("%s_by_grams", q.Collection) && strings.Contains(n.IndexCond, "search_grams(workspace_id")
		case n.Type == "Bitmap Heap Scan": // it filters nothing
		case n.Relation != "":
			lists++
			ok = n.Type == "Index Scan" && n.Index == index && strings.Contains(n.IndexCond, "workspace_id = ") &&
				(q.After == "" || strings.Contains(n.IndexCond, "ROW("))
		}
		for _, child := range n.Plans {
			ok = judge(child) && ok
		}
		return ok
	}
	s, _ := shapeOf(&q)
	wanted := map[searchPlan][3]int{noSearch: {1, 0, 0}, walkSearch: {1, 0, 0}, indexedSearch: {2, 1, 1}}[s.search]
	if !judge(p) || [3]int{lists, grams, sorts} != wanted {
		t.Errorf("%s behind %q is not read by %s and the index of grams alone:\n%s", describe(q), q.After, index, p.text)
	}
}
