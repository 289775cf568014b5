package e2e

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/internal/world"
	"listedge/origin"
	"listedge/origin/postgres"
)

// The oracle of pages. Writers change rows in every way while readers ask for pages of many queries. Then they pause, and each
// page that a node calls fresh must equal the page read from the database, byte by byte.
type pages struct {
	url       string
	random    *rand.Rand
	reference *origin.Origin // reads pages anew
	owners    []owner

	queries []page.Query
	hits    int // pages compared that a node had

	mu    sync.Mutex // guards kinds, and queries while readers pick some
	kinds map[string]int
}

// owner is a workspace whose rows the writers change.
type owner struct {
	workspace, key string
	rows           int // of each list, more or less: in a short one each change is near to all pages
}

const (
	pageQueries = 120
	pageWriters = 2
	pageReaders = 4
)

func newPages(t *testing.T, seed uint64, url string) *pages {
	t.Helper()
	db := must1(postgres.Open(t.Context(), postgres.Options{URL: url, Connections: pageReaders, QueryTimeout: patience}))
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	p := &pages{url: url, random: rand.New(rand.NewPCG(seed, 0)), reference: origin.New(db, list.BuiltIn(), nil), kinds: map[string]int{}}
	for _, rows := range []int{200, 200, 7, 7} {
		workspace, key := workspaceWithKey(t, url)
		p.owners = append(p.owners, owner{workspace, key, rows})
	}
	conn := connect(t, url)
	for i := range p.owners {
		for _, table := range tables {
			must1(conn.Exec(t.Context(), p.statement(p.random, "copy", table, i)))
		}
	}
	p.newQueries(pageQueries)
	return p
}

// newQueries replaces some of the queries by others.
func (p *pages) newQueries(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.random.Shuffle(len(p.queries), func(i, j int) { p.queries[i], p.queries[j] = p.queries[j], p.queries[i] })
	p.queries = p.queries[min(len(p.queries), max(0, len(p.queries)+n-pageQueries)):]
	for range n {
		p.queries = append(p.queries, p.randomQuery())
	}
}

// randomQuery is the first page of any list, more often of a short one.
func (p *pages) randomQuery() page.Query {
	r, l := p.random, pick(p.random, list.BuiltIn().Lists)
	q := page.Query{List: l, Tenant: p.owners[len(p.owners)-1-r.IntN(6)%4].workspace, Order: r.IntN(len(l.Orders)),
		Limit: pick(r, []int{1, 1, 2, 3, 3, 5, 8, 20, 50, 100}), Search: pick(r, []string{"", "", "", "", "a", "ab", "abc", "b1", "äb", "чай"})}
	for _, f := range l.Filters {
		if r.IntN(2) == 0 {
			q.Match |= pick(r, f.Values).Bit
		}
	}
	return q
}

func (p *pages) keyOf(q *page.Query) string {
	for _, o := range p.owners {
		if o.workspace == q.Tenant {
			return o.key
		}
	}
	panic("nobody's query")
}

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

var tables = []string{"items", "contacts"}

// The values of a row, as SQL. Many are equal.
var values = map[string]map[string]string{
	"items": {"name": "@name", "sku": "(ARRAY['', 'abc', 'ABC', 'xaby', 'чай', NULL])[1 + (random() * 5)::int]", "description": "nullif(@name, 'a')",
		"type": "(ARRAY['GOODS', 'SERVICE'])[1 + round(random())::int]", "track_stock": "random() < 0.5", "stock_on_hand": "(random() * 9)::int / 2.0",
		"reorder_point": "nullif((random() * 4)::int, 2)", "usage_30": "(random() * 20)::int / 2.0", "active": "random() < 0.9"},
	"contacts": {"name": "@name", "email": "nullif(@name, 'a')", "phone": "(ARRAY['+49', '0', NULL])[1 + (random() * 2)::int]",
		"is_customer": "random() < 0.5", "is_supplier": "random() < 0.5", "active": "random() < 0.9"},
}

// ways are the ways to write, and how often each is taken: "@few" rows of the workspace "@one", whose next one is "@two"; "@column" is any.
var ways = map[string]struct {
	often int
	sql   string
}{
	"insert":     {12, "@insert 1)"},
	"copy":       {3, "@insert @most)"},
	"delete":     {10, "DELETE FROM @table WHERE @few"},
	"update":     {30, "UPDATE @table SET @column = @value WHERE @few"},
	"all values": {8, "UPDATE @table SET @all WHERE @few"},
	"rename":     {16, "UPDATE @table SET name = @name WHERE @few"},
	"again":      {8, "UPDATE @table SET @column = @value WHERE @few; UPDATE @table SET @all WHERE @mine; DELETE FROM @table WHERE @mine AND random() < 0.3"},
	"replace": {4, "CREATE TEMP TABLE kept (id uuid) ON COMMIT DROP; WITH gone AS (DELETE FROM @table WHERE @few RETURNING id) " +
		"INSERT INTO kept SELECT id FROM gone; INSERT INTO @table (workspace_id, id, name) SELECT '@one', id, @name FROM kept"},
	"id":     {4, "UPDATE @table SET id = gen_random_uuid() WHERE @few"},
	"time":   {4, "UPDATE @table SET created_at = @time WHERE @few"},
	"move":   {8, "UPDATE @table SET workspace_id = '@two' WHERE @few"},
	"part":   {4, "SAVEPOINT s; DELETE FROM @table WHERE @few; ROLLBACK TO s; UPDATE @table SET @all WHERE @few"},
	"long":   {3, "UPDATE @table SET name = (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 70 + (random() * 230)::int)) WHERE @few"},
	"beside": {3, "UPDATE @table SET @column = @value WHERE workspace_id = '@one' AND length(name) > 1000"}, // the log does not have the long value
	"many":   {1, "UPDATE @table SET name = left(reverse(name), 100), active = NOT active WHERE workspace_id = '@one'"},
}

// locks are ways that lock the table, and of which the log names no row.
var locks = map[string]string{
	"truncate": "LOCK TABLE @table IN ACCESS EXCLUSIVE MODE; CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM @table " +
		"WHERE random() < 0.9 OR workspace_id NOT IN (@owners); TRUNCATE @table; INSERT INTO @table SELECT * FROM kept",
	"definition": "ALTER TABLE @table ALTER COLUMN @plain TYPE text USING CASE WHEN workspace_id IN (@owners) " +
		"THEN left(coalesce(@plain, '') || 'x', 50) ELSE @plain END",
}

var usualWays = func() (all []string) {
	for way, w := range ways {
		for range w.often {
			all = append(all, way)
		}
	}
	return all
}()

// randomName returns a name. Many names are equal, begin alike, or differ only by case.
func randomName(r *rand.Rand) string {
	letters := []rune("aAbäÄ\u0301éчайЧß1 -\u00ad茶한")
	name := make([]rune, 1+r.IntN(4))
	for i := range name {
		name[i] = pick(r, letters)
	}
	if r.IntN(12) == 0 { // the same in what orders it, or just not
		name = append([]rune(strings.Repeat("ab", 38)), name...)
		name = append(name, []rune(strings.Repeat("x", r.IntN(8)))...)
	}
	return string(name)
}

// statement is a transaction that writes that way.
func (p *pages) statement(r *rand.Rand, way, table string, i int) string {
	of := values[table]
	columns := slices.Sorted(maps.Keys(of))
	var made, sets, owners, names []string
	for _, c := range columns {
		made, sets = append(made, of[c]), append(sets, c+" = "+of[c])
	}
	for _, o := range p.owners {
		owners = append(owners, "'"+o.workspace+"'")
	}
	for range 9 {
		names = append(names, "'"+randomName(r)+"'")
	}
	column := pick(r, columns)
	sql := strings.NewReplacer("@column", column, "@value", of[column], "@all", strings.Join(sets, ", "), "@mine", "xmin = pg_current_xact_id()::xid",
		"@few", "id IN (SELECT id FROM @table WHERE workspace_id = '@one' ORDER BY random() LIMIT 1 + (random() * 3)::int)",
		"@insert", "INSERT INTO @table (workspace_id, created_at, "+strings.Join(columns, ", ")+") SELECT '@one', @time, "+strings.Join(made, ", ")+
			" FROM generate_series(1,").Replace(cmp.Or(ways[way].sql, locks[way]))
	sql = strings.NewReplacer("@name", "(ARRAY["+strings.Join(names, ", ")+"])[1 + floor(random() * 9)::int]", "@table", table, "@one", p.owners[i].workspace,
		"@two", p.owners[i^1].workspace, "@owners", strings.Join(owners, ", "), "@most", strconv.Itoa(max(1, p.owners[i].rows*2/5)),
		"@plain", map[string]string{"items": "unit", "contacts": "address"}[table],
		"@time", "timestamptz '2026-01-01Z' + (random() * 60)::int * interval '1 ms'").Replace(sql) // so many rows have the same
	return "BEGIN; " + sql + "; COMMIT"
}

// step writes one transaction. If two writers block each other, one transaction is rolled back.
func (p *pages) step(ctx context.Context, conn *pgx.Conn, r *rand.Rand, ways []string) error {
	way, table, i := pick(r, ways), pick(r, tables), r.IntN(len(p.owners))
	var rows int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM "+table+" WHERE workspace_id = $1", p.owners[i].workspace).Scan(&rows); err != nil {
		return err
	}
	switch usual := p.owners[i].rows; {
	case rows > usual*5/4:
		way = "delete"
	case rows < usual*3/4:
		way = "copy"
	}
	_, err := conn.PgConn().Exec(ctx, p.statement(r, way, table, i)).ReadAll()
	switch postgres.Code(err) {
	case "40P01", "55P03", "23505", "40001": // two writers blocked each other, or replaced or moved the same row
		_, err = conn.Exec(ctx, "ROLLBACK")
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kinds[way]++
	return err
}

// write changes rows until ctx ends, whatever happens to Postgres.
func (p *pages) write(ctx context.Context, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, p.url)
		for err == nil && ctx.Err() == nil {
			err = p.step(context.WithoutCancel(ctx), conn, r, usualWays)
			pause(2 * readPause)
		}
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		pause(readPause)
	}
}

// read asks for pages until ctx ends.
func (p *pages) read(ctx context.Context, seed uint64, n *testNode, longest time.Duration) {
	for r := rand.New(rand.NewPCG(seed, 0)); ctx.Err() == nil; pause(longest) {
		p.mu.Lock()
		q := pick(r, p.queries)
		p.mu.Unlock()
		_, _ = n.try("GET", world.Target(&q), p.keyOf(&q))
	}
}

// burst has some transactions written, and pages read on these nodes meanwhile.
func (p *pages) burst(t *testing.T, nodes []*testNode) {
	reading, stop := context.WithCancel(t.Context())
	var writers, readers sync.WaitGroup
	for range pageWriters {
		r := rand.New(rand.NewPCG(p.random.Uint64(), 0))
		writers.Go(func() {
			conn, err := pgx.Connect(reading, p.url)
			for range r.IntN(4) {
				if err == nil {
					err = p.step(reading, conn, r, slices.Concat(usualWays, slices.Collect(maps.Keys(locks))))
				}
			}
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.Close(reading)
		})
	}
	for i := range pageReaders {
		seed := p.random.Uint64()
		readers.Go(func() { p.read(reading, seed, nodes[i%len(nodes)], time.Millisecond) })
	}
	writers.Wait()
	stop()
	readers.Wait()
}

// compare reads pages from the database while nothing is written, and compares with what nodes show of the same, asked with these headers.
// It leaves out some pages, so that several pauses' changes are compared with them later, at once.
func (p *pages) compare(t *testing.T, nodes []*testNode, headers ...string) {
	t.Helper()
	bodies, chosen := make([]string, len(p.queries)), make([]bool, len(p.queries))
	for i := range chosen {
		chosen[i] = p.random.IntN(3) > 0
	}
	var next, hits, wrong atomic.Int64
	var reading sync.WaitGroup
	for range pageReaders {
		reading.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(bodies); i = int(next.Add(1)) - 1 {
				q := p.queries[i]
				rows, err := p.reference.Fetch(t.Context(), q, "")
				if err != nil {
					t.Error(err)
					return
				}
				bodies[i] = bodyOf(&q, &rows)
				for at, n := range nodes {
					if !chosen[i] {
						continue
					}
					a, err := n.try("GET", world.Target(&q), p.keyOf(&q), headers...)
					if err != nil || a.StatusCode != 200 || strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error") {
						continue // it is marked as stale
					}
					if strings.HasPrefix(cacheStatus(a.Header), "listedge; hit") {
						hits.Add(1)
					}
					if shown, _, _ := strings.Cut(string(a.body), `,"requestId"`); shown != bodies[i] && wrong.Add(1) < 4 {
						t.Errorf("node %d, %s (%s) shows\n%s\nand the database has\n%s", at, world.Target(&q), a.Header.Get("Cache-Status"), shown, bodies[i])
					}
				}
			}
		})
	}
	reading.Wait()
	p.hits += int(hits.Load())
	p.newQueries(pageQueries / 16)
	for range pageQueries / 16 { // pages that a walk requests
		i := p.random.IntN(len(bodies))
		if _, cursor, more := strings.Cut(bodies[i], `"nextCursor":"`); more && i < len(p.queries) {
			q := p.queries[i]
			cursor, _, _ = strings.Cut(cursor, `"`)
			if after, err := q.ParseCursor(new([]byte), []byte(cursor)); err == nil {
				q.After = after
				p.mu.Lock()
				p.queries[p.random.IntN(len(p.queries))] = q
				p.mu.Unlock()
			}
		}
	}
}

// rounds writes and compares for so long, each time as soon as all is written: with no-cache each page shows it.
func (p *pages) rounds(t *testing.T, d time.Duration, nodes []*testNode) {
	rounds := 0
	for began := time.Now(); !t.Failed() && (time.Since(began) < d || p.hits == 0 && time.Since(began) < patience); rounds++ {
		p.burst(t, nodes)
		p.compare(t, nodes, "Cache-Control: no-cache")
	}
	t.Logf("%d rounds of changes %v; %d pages compared that nodes had", rounds, p.kinds, p.hits)
	if p.hits == 0 {
		t.Error("no page was compared that a node had: nothing was shown")
	}
}

// bodyOf is the body of the query's page among the rows that it read.
func bodyOf(q *page.Query, rows *page.Read) string {
	n := min(q.Limit, len(rows.Rows))
	texts, last := make([]string, n), (*list.Row)(nil)
	for i := range texts {
		texts[i], last = rows.Rows[i].Text(), &rows.Rows[i]
	}
	head, end, _ := q.Frame(last, n < len(rows.Rows) || !rows.End)
	return head + strings.Join(texts, ",") + end
}
