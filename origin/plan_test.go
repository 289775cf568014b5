package origin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
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
				p.usedIndexes[baseName(n.Index)] += n.Loops * (n.Rows + n.Filtered + n.Rechecked)
			}
		}
		for _, child := range n.Plans {
			walk(child)
		}
	}
	walk(p)
	return p
}

// baseName is the name of an index of a list without the hash of its definition.
func baseName(index string) string {
	return regexp.MustCompile("_[0-9a-f]{8}$").ReplaceAllString(index, "")
}

// indexName is the whole name.
func indexName(l *list.List, base string) string {
	for _, x := range l.Indexes() {
		if baseName(x.Name) == base {
			return x.Name
		}
	}
	panic(l.Name + " has no index " + base)
}

// explained is an Origin whose sessions explain what they do.
type explained struct {
	origin *Origin
	plans  chan *plan
	whole  map[string]string // of the index of a partition, that of the table
}

func explain(t testing.TB, url string, lists *list.Set) *explained {
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
	e.origin = New(db, lists, nil)
	rows, _ := pool.Query(t.Context(), "SELECT inhrelid::regclass::text, inhparent::regclass::text FROM pg_inherits") // the rows have the error
	var of, whole string
	e.whole = map[string]string{}
	must1(pgx.ForEachRow(rows, []any{&of, &whole}, func() error {
		_, of, _ = strings.Cut("."+of, ".")
		e.whole[of[strings.LastIndex(of, ".")+1:]] = whole[strings.LastIndex(whole, ".")+1:]
		return nil
	}))
	for len(e.plans) > 0 {
		<-e.plans
	}
	return e
}

// fetch returns the page's ids and how the server came by them.
func (e *explained) fetch(t testing.TB, q page.Query) (ids []string, p *plan) {
	t.Helper()
	ids, _ = fetch(t, e.origin, q)
	return ids, e.plan(t)
}

// plan returns that of the last statement.
func (e *explained) plan(t testing.TB) *plan {
	t.Helper()
	select {
	case p := <-e.plans:
		return p
	default:
		t.Fatal("the server explained nothing")
		return nil
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
func behind(t testing.TB, conn *pgx.Conn, q page.Query, rows int) list.Position {
	t.Helper()
	kept := "true"
	for _, f := range q.List.Filters {
		for _, v := range f.Values {
			if q.Match&v.Bit != 0 {
				kept += " AND " + v.Keep.String()
			}
		}
	}
	var id, name, at string
	err := conn.QueryRow(context.Background(), fmt.Sprintf(`SELECT id::text, name, to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS+00') FROM %s
		WHERE workspace_id = $1 AND active AND %s ORDER BY %s OFFSET $2 LIMIT 1`, q.List.Table.SQL(), kept,
		[]string{listtest.ByCreatedAt: "created_at DESC, id DESC", listtest.ByName: `listedge_name_key(name) COLLATE "C", id`}[q.Order]),
		ourWorkspace, rows-1).Scan(&id, &name, &at)
	must(err)
	row := listtest.Row(q.List, "id", id, "name", name, "created_at", at)
	return q.List.Position(&row, q.Order)
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
	e := explain(t, url, list.BuiltIn())
	const limit = 50
	// reads asks for a page twice, because the first prepares, and expects a number of rows, read from no more rows of an order and of the
	// index of grams, and of as many blocks.
	reads := func(q page.Query, rows int, most, grams float64) (walked float64) {
		t.Helper()
		q.Tenant, q.Limit = ourWorkspace, limit
		e.fetch(t, q)
		ids, p := e.fetch(t, q)
		for index, n := range p.usedIndexes {
			if !strings.HasSuffix(index, "_by_grams") {
				walked += n
			}
		}
		found, blocks := p.usedIndexes[q.List.Name+"_by_grams"], 2
		if q.Search != "" {
			blocks = 3
		}
		if len(ids) != rows || walked == 0 || walked > most || found > grams || (found > 0) != (grams > 0) || p.buffers > blocks*int(most) {
			t.Errorf("%s behind %q: %d rows of %v, and %v by grams, in %d blocks:\n%s", describe(q), q.After, len(ids), walked, found, p.buffers, p.text)
		}
		e.mustReadBy(t, p, q)
		return walked
	}
	for _, l := range list.BuiltIn().Lists {
		for order := range l.Orders {
			for _, keep := range (plain{}).matches(l) {
				q := page.Query{List: l, Order: order, Match: keep.match}
				if bits.OnesCount64(keep.match) > 1 {
					continue
				}
				shown, few := 20_000, float64(1) // of contacts
				switch {
				case l == listtest.Items && keep.match&listtest.Low != 0:
					shown = 700
				case l == listtest.Items && keep.match&listtest.Services != 0:
					shown = 1300
				case l == listtest.Contacts && keep.match == listtest.Suppliers:
					shown = 600
				case l == listtest.Items:
					shown = 40_000
				}
				if shown > 10_000 && keep.match != 0 {
					few = 2.5 // such filters walk the whole list's index
				}
				for _, deep := range []int{0, shown * 3 / 4} {
					if q.After = ""; deep > 0 && few == 1 {
						q.After = behind(t, conn, q, deep)
					}
					shape, _ := shapeOf(&q)
					reads(q, limit, few*float64(shape.rows(limit)), 0)
				}
			}
			// A term that few rows have: a glance at the list, and then the index of grams.
			live := map[*list.List]int{listtest.Items: bigMatches - 1, listtest.Contacts: 20}[l]
			reads(page.Query{List: l, Order: order, Search: "needle"}, live, list.SearchGlance, bigMatches)
		}
	}
	for _, order := range []int{listtest.ByCreatedAt, listtest.ByName} {
		// Three in four have the term and half are tracked: no more than it needs, however deep.
		for _, stock := range []uint64{0, listtest.Tracked} {
			q := page.Query{List: listtest.Items, Order: order, Match: stock, Search: "PRODUCT"}
			most := map[int]float64{listtest.ByCreatedAt: 5 * limit, listtest.ByName: list.SearchWalk}[order]
			reads(q, limit, most, 0)
			q.After = behind(t, conn, q, 15_000)
			reads(q, limit, most, 0)
		}
		// One row in eighteen matches: too few to fill the page in the first 500 rows, but enough to read on in list order.
		q := page.Query{List: listtest.Items, Order: order, Search: "SKU-19"}
		if walked := reads(q, limit, list.SearchGlance+list.SearchWalk, 0); walked <= list.SearchGlance {
			t.Errorf("%s: only %v rows are looked at", describe(q), walked)
		}
	}
	reads(page.Query{List: listtest.Items, Search: "pr"}, limit, 5*limit, 0) // a term without a gram
}

// TestPlansAreTheSameWhateverTheServerKnows asks for a page of each kind, and for the check of a node that
// starts, while the planner knows nothing, the truth, or what was true once. It judges each part of a plan, also
// parts that were not executed: no list is read but by its own index, and none is searched but by the index of grams.
func TestPlansAreTheSameWhateverTheServerKnows(t *testing.T) {
	t.Parallel()
	url := newDatabase(t) // of a server without autovacuum
	conn := connect(t, url)
	check := func(state string) {
		t.Run(state, func(t *testing.T) {
			if shapes, want := checkEveryPlan(t, url, list.BuiltIn(), ourWorkspace, "c4ca4238-a0b9-2382-0dcc-509a6f75849b"), 2*2*3*(3*3+3); shapes != want { // md5 of 1
				t.Errorf("%d shapes of %d", shapes, want)
			}
		})
	}
	check("no rows, never analysed")
	grams := indexName(listtest.Items, "items_by_grams")
	exec(t, conn, "ALTER INDEX "+grams+" SET (gin_pending_list_limit = 16384)") // four times the default: it is never emptied on the way

	const names = "SELECT 'aaaaaaaa-0000-4000-8000-000000000001'::uuid, n, 'Name ' || n FROM generate_series(1, 350) n UNION ALL " +
		"SELECT md5((n % 20)::text)::uuid, n, 'Name ' || n FROM generate_series(1, 70) n"
	exec(t, conn, `INSERT INTO items (workspace_id, name, description, type, track_stock, reorder_point)
		SELECT w, name, (SELECT string_agg(md5(n::text || k), ' ') FROM generate_series(1, 240) k), 'SERVICE', true, 1 FROM (`+names+`) rows (w, n, name)`)
	exec(t, conn, `INSERT INTO contacts (workspace_id, name, is_supplier) SELECT w, name, true FROM (`+names+`) rows (w, n, name)`)
	check("texts of 8 kB wait in the pending list of items, never analysed")
	exec(t, conn, "ANALYZE")
	check("and analysed")

	// The indexes of few rows are longer than those of all.
	exec(t, conn, "UPDATE items SET usage_30 = 1; UPDATE contacts SET phone = '1'")
	for _, l := range list.BuiltIn().Lists {
		exec(t, conn, "REINDEX INDEX "+indexName(l, l.Name+"_by_created_at")+"; REINDEX INDEX "+indexName(l, l.Name+"_by_name"))
	}
	exec(t, conn, "ANALYZE")
	check("all rows are services, low and suppliers")
	exec(t, conn, "UPDATE items SET active = false; UPDATE contacts SET active = false")
	exec(t, conn, "ANALYZE")
	exec(t, conn, "UPDATE items SET active = true; UPDATE contacts SET active = true")
	check("no row was active")
	var pages int
	if must(conn.QueryRow(t.Context(), "SELECT gin_clean_pending_list($1::regclass)", grams).Scan(&pages)); pages < 512 {
		t.Errorf("only %d pages were pending", pages)
	}
	check("no list is pending")
	exec(t, conn, "DELETE FROM items; DELETE FROM contacts")
	exec(t, conn, "VACUUM ANALYZE")
	exec(t, conn, `INSERT INTO items (workspace_id, name) SELECT w, name FROM (`+names+`) rows (w, n, name)`)
	exec(t, conn, `INSERT INTO contacts (workspace_id, name) SELECT w, name FROM (`+names+`) rows (w, n, name)`)
	check("there was no row")
}

// checkEveryPlan fetches a page of every shape, and returns how many there are. A plan is for any tenant, and a
// small one is read sooner.
func checkEveryPlan(t *testing.T, url string, lists *list.Set, large, small string) (shapes int) {
	t.Helper()
	e := explain(t, url, lists)
	for _, l := range lists.Lists {
		for order := range l.Orders {
			for _, keep := range (plain{}).matches(l) {
				for _, search := range []string{"", "zq", "zzqx"} {
					q := page.Query{List: l, Tenant: l.Owner(large), Order: order, Match: keep.match, Search: search, Limit: 50}
					if keep.match != 0 {
						q.Tenant = l.Owner(small)
					}
					if search != "" && len(l.Search) == 0 {
						continue
					}
					some := listtest.Row(l)
					for _, q.After = range []list.Position{"", l.Position(&some, order)} {
						fetch(t, e.origin, q)
						if e.mustReadBy(t, e.plan(t), q); t.Failed() {
							return shapes // one plan says enough
						}
						shapes++
					}
				}
			}
		}
	}
	must(e.origin.Check(t.Context()))
	for _, l := range lists.Lists {
		for order := range l.Orders {
			q := page.Query{List: l, Order: order, After: "a position"}
			if len(l.Search) > 0 {
				q.Search = "none"
			}
			p := <-e.plans
			e.mustReadBy(t, p, q)
			for index, rows := range p.usedIndexes {
				if rows > 0 { // of a large table it would never end in time
					t.Errorf("to check whether %s can be read, %v rows are found in %s", describe(q), rows, index)
				}
			}
		}
	}
	return shapes
}

// mustReadBy fails unless each scan of the query's table is by the index that its list has: of
// rows that a filter usually keeps few of, the index of those.
func (e *explained) mustReadBy(t *testing.T, p *plan, q page.Query) {
	t.Helper()
	l, few := q.List, ""
	for _, f := range l.Filters {
		for _, v := range f.Values {
			if few == "" && v.Few && q.Match&v.Bit != 0 {
				few = "_" + v.Name
			}
		}
	}
	index := l.Name + few + "_by_" + strings.ToLower(l.Columns[l.Orders[q.Order].Column].Name)
	lists, grams, sorts, tables := 0, 0, 0, map[string]bool{} // a partition is a table
	nameOf := func(index string) string { return baseName(cmp.Or(e.whole[index], index)) }
	var judge func(n *plan) bool
	judge = func(n *plan) bool {
		ok := true
		switch {
		case n.Type == "Sort" || n.Type == "Incremental Sort":
			sorts++
		case n.Type == "Bitmap Index Scan": // of the whole list, or of what it says: its heap scan is the parent
			grams++
			ok = nameOf(n.Index) == l.Name+"_by_grams" && strings.Contains(n.IndexCond, "listedge_search_grams(")
		case n.Type == "Bitmap Heap Scan": // it filters nothing
		case n.Relation != "":
			lists++
			tables[n.Relation] = true
			ok = n.Type == "Index Scan" && nameOf(n.Index) == index && (l.Tenant < 0 || strings.Contains(n.IndexCond, "$1")) &&
				(q.After == "" || strings.Contains(n.IndexCond, "ROW("))
		}
		for _, child := range n.Plans {
			ok = judge(child) && ok
		}
		return ok
	}
	s, _ := shapeOf(&q)
	wanted := map[list.SearchPlan][3]int{list.NoSearch: {1, 0, 0}, list.WalkSearch: {1, 0, 0}, list.IndexedSearch: {2, 1, 1}}[s.Search]
	if !judge(p) || [3]int{lists / max(1, len(tables)), grams / max(1, len(tables)), sorts} != wanted {
		t.Errorf("%s behind %q is not read by %s and the index of grams alone:\n%s", describe(q), q.After, index, p.text)
	}
}
