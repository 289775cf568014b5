package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/cmd/listedge/node"
	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin"
	"listedge/origin/postgres"
)

// The oracle of precise invalidation. Writers change rows in many ways while readers fill the
// caches of nodes. Then the writers pause. As soon as a node has a proof of everything
// written, each page that its cache calls fresh must equal the page read from the database,
// byte by byte.
type pageOracle struct {
	shape      *shape
	workspaces []pageWorkspace
	url        string
	nodes      []pageNode
	random     *rand.Rand
	references map[*list.Set]*origin.Origin // that read pages anew

	queries  []page.Query   // of the lists of shape
	compared map[string]int // by where the page was
	of       map[string]int // pages compared, by list and order
	wrong    int

	mu    sync.Mutex // guards all below
	kinds map[string]int
}

type pageWorkspace struct {
	tenant string
	key    string
	rows   int // of each list, more or less: in a short one each change is near to all pages
}

// pageNode is a node: its HTTP address, and its cache in this process.
type pageNode struct {
	*node.Node
	client *testNode
	lists  *list.Set
	stop   func()
}

// on is the query as the node understands it: its description of the list may be another.
func (n *pageNode) on(q page.Query) page.Query {
	q.List = n.lists.ByName(q.List.Name)
	return q
}

const (
	pageQueries = 160
	pageWriters = 2
	pageReaders = 4
)

func newPageOracle(t *testing.T, seed uint64, url string, s *shape) *pageOracle {
	t.Helper()
	o := &pageOracle{shape: s, url: url, random: rand.New(rand.NewPCG(seed, 0)),
		kinds: map[string]int{}, compared: map[string]int{}, of: map[string]int{}, references: map[*list.Set]*origin.Origin{}}
	for i := range 4 {
		tenant := ""
		if s.tenants != nil {
			tenant = s.tenants[i]
		}
		workspace, key := tenantWithKey(t, url, tenant, s.set)
		o.workspaces = append(o.workspaces, pageWorkspace{cmp.Or(tenant, workspace), key, []int{200, 7}[i/2]})
	}
	w := &pageWriter{conn: connect(t, url), random: o.random, oracle: o}
	for _, l := range s.set.Lists {
		for i, workspace := range o.workspaces {
			if l.Tenant < 0 && i > 0 {
				break // all see the same rows
			}
			must(pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
				return w.fill(t.Context(), tx, rowsOf{l, l.Owner(workspace.tenant)}, workspace.rows)
			}))
		}
	}
	o.newQueries(pageQueries)
	return o
}

// start wires and starts one node more.
func (o *pageOracle) start(t *testing.T, flags ...string) {
	t.Helper()
	o.nodes = append(o.nodes, o.launch(t, o.shape.set, flags...))
}

// launch wires and starts a node with these lists.
func (o *pageOracle) launch(t *testing.T, lists *list.Set, flags ...string) pageNode {
	t.Helper()
	var f struct {
		node.ListenFlags
		node.Flags
	}
	parser := kong.Must(&f, kong.Vars{"drain": "0s"})
	must1(parser.Parse(append([]string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--verify", "100ms"}, flags...)))
	public, private, err := node.Listen(f.ListenFlags)
	must(err)
	n, err := node.New(t.Context(), node.Options{Flags: f.Flags, Lists: lists, DatabaseURL: o.url, ReplicationURL: o.url, Settings: map[string]any{},
		Log: node.NewLog(node.NewLineQueue(io.Discard), f.Flags), Public: public, Private: private})
	must(err)
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(ctx) }()
	stop := sync.OnceFunc(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	client := &testNode{url: "http://" + public.Addr().String(), admin: "http://" + private.Addr().String(), document: documentOf(lists)}
	client.awaitFollowed(t)
	return pageNode{n, client, lists, stop}
}

// newQueries replaces some of the queries by others: by pages of other lists, and by the next
// pages of known ones.
func (o *pageOracle) newQueries(n int) {
	o.random.Shuffle(len(o.queries), func(i, j int) { o.queries[i], o.queries[j] = o.queries[j], o.queries[i] })
	o.queries = o.queries[min(len(o.queries), max(0, len(o.queries)+n-pageQueries)):]
	for range n {
		o.queries = append(o.queries, o.randomQuery(o.workspaces[len(o.workspaces)-1-o.random.IntN(6)%4].tenant)) // more often a short list
	}
}

// committed counts a transaction.
func (o *pageOracle) committed(kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kinds[kind]++
}

// comparedAll says whether pages of all lists and orders were compared.
func (o *pageOracle) comparedAll() bool {
	for _, l := range o.shape.set.Lists {
		if slices.ContainsFunc(l.Orders, func(order list.Order) bool { return o.of[l.Name+" by "+order.Name] == 0 }) {
			return false
		}
	}
	return true
}

// run writes, reads and compares until d is over and something was shown.
func (o *pageOracle) run(t *testing.T, d time.Duration) {
	writers, rounds := o.writers(t), 0
	shown := o.comparedAll
	for began := time.Now(); !t.Failed() && (time.Since(began) < d || !shown() && time.Since(began) < d+patience); rounds++ {
		o.write(t, writers, func() {}, o.nodes...)
		o.compare(t, time.Now())
	}
	transactions := 0
	for _, n := range o.kinds {
		transactions += n
	}
	t.Logf("%d rounds, %d changes of lists %v; pages compared: %v, %v", rounds, transactions, o.kinds, o.compared, o.of)
	for i, n := range o.nodes {
		t.Logf("node %d: replica %+v", i, n.Cache.Stats().Replica)
		verified := uint64(0)
		for list, v := range n.Cache.Stats().Replica.Verified {
			verified += v.Pages
			if v.Mismatches[replica.Rows] > 0 || v.Mismatches[replica.Folds] > 0 {
				t.Errorf("%s: rows of the node were not those of the database: %v", list, v.Mismatches)
			}
		}
		if n.Cache.Stats().Replica.Fills[replica.Inconsistent] > 0 {
			t.Error("what a statement returned differs from what the node had applied")
		}
		if verified == 0 && n.Cache.Mode() == cache.ModeFollowed {
			t.Error("no page was verified")
		}
	}
	if !shown() {
		t.Error("of some kinds no page was compared: nothing was shown of them")
	}
}

func (o *pageOracle) writers(t *testing.T) (writers []*pageWriter) {
	for range pageWriters {
		writers = append(writers, &pageWriter{conn: connect(t, o.url), random: rand.New(rand.NewPCG(o.random.Uint64(), 0)), oracle: o})
	}
	return writers
}

// write runs the writers, and the readers of these nodes, and returns when all writers have ended, and what happens meanwhile.
func (o *pageOracle) write(t *testing.T, writers []*pageWriter, meanwhile func(), nodes ...pageNode) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	read := func(n pageNode, q page.Query) {
		if _, err := n.client.try("GET", addressOf(&q), o.workspace(q.Tenant).key); err != nil {
			t.Error(err)
		}
	}
	for i, q := range o.queries { // so that most pages are there when something changes
		n := nodes[i%len(nodes)]
		q = n.on(q)
		if _, ok := n.Cache.Hit(&q, time.Now()); !ok {
			read(n, q)
		}
	}
	reading, stop := context.WithCancel(ctx)
	var writing, readers sync.WaitGroup
	for _, w := range writers {
		steps := w.random.IntN(4)
		writing.Go(func() {
			for range steps {
				switch err := w.step(ctx); postgres.Code(err) {
				case "40P01", "55P03", "23505", "40001": // two writers blocked each other, or replaced or moved the same row
				default:
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for i := range pageReaders {
		random := rand.New(rand.NewPCG(o.random.Uint64(), 0))
		readers.Go(func() {
			for reading.Err() == nil {
				n := nodes[i%len(nodes)]
				read(n, n.on(pick(random, o.queries)))
			}
		})
	}
	meanwhile()
	writing.Wait()
	stop()
	readers.Wait()
}

// workspace is that of the tenant, or the first one of a list that all see.
func (o *pageOracle) workspace(tenant string) *pageWorkspace {
	return &o.workspaces[max(0, slices.IndexFunc(o.workspaces, func(w pageWorkspace) bool { return w.tenant == tenant }))]
}

// compare reads pages from the database while nothing is written, and compares. It leaves out
// some pages, so that several pauses' changes are compared with them later, at once.
func (o *pageOracle) compare(t *testing.T, quiet time.Time) {
	chosen := slices.DeleteFunc(slices.Clone(o.queries), func(page.Query) bool { return o.random.IntN(3) == 0 })
	read := map[*list.Set][]string{}
	for i, n := range o.nodes {
		within(t, patience, fmt.Sprintf("node %d knows all that was written", i), func() bool { return n.Cache.Stats().ProofAge < time.Since(quiet) })
		if read[n.lists] == nil {
			read[n.lists] = o.readAnew(t, &n, chosen)
		}
		for j, q := range chosen {
			o.compareOn(t, i, n, n.on(q), read[n.lists][j], quiet)
		}
	}
	o.newQueries(pageQueries / 16)
	for range pageQueries / 16 { // pages that a walk requests
		i := o.random.IntN(len(chosen))
		last := &o.nodes[len(o.nodes)-1]
		q := last.on(chosen[i])
		_, next, more := strings.Cut(read[last.lists][i], `"nextCursor":"`)
		if next, _, _ = strings.Cut(next, `"`); more {
			chosen[i].After = must1(q.ParseCursor(new([]byte), []byte(next)))
			o.queries[o.random.IntN(len(o.queries))] = chosen[i]
		}
	}
}

// readAnew reads the bodies of pages from the database, as the node would show them.
func (o *pageOracle) readAnew(t *testing.T, n *pageNode, queries []page.Query) []string {
	reference := o.references[n.lists]
	if reference == nil {
		db := must1(postgres.Open(t.Context(), postgres.Options{URL: o.url, Connections: pageReaders, QueryTimeout: patience}))
		t.Cleanup(func() { _ = db.Close(context.Background()) })
		reference = origin.New(db, n.lists, nil)
		o.references[n.lists] = reference
	}
	bodies := make([]string, len(queries))
	var next atomic.Int64
	var reading sync.WaitGroup
	for range pageReaders {
		reading.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(bodies); i = int(next.Add(1)) - 1 {
				q := n.on(queries[i])
				rows, err := reference.Fetch(t.Context(), q, "")
				if err != nil {
					t.Error(err)
					return
				}
				bodies[i] = bodyOf(&q, &rows)
			}
		})
	}
	reading.Wait()
	return bodies
}

// compareOn compares the entry of the query in a node's cache with the page.
func (o *pageOracle) compareOn(t *testing.T, at int, n pageNode, q page.Query, body string, quiet time.Time) {
	now := time.Now()
	r, ok := n.Cache.Hit(&q, now)
	if !ok || r.Age >= now.Sub(quiet) { // it may lack the last writes
		return
	}
	o.compared[r.Source.String()]++
	o.of[q.List.Name+" by "+q.List.Orders[q.Order].Name]++
	if found, _ := r.Entry.AppendBody(nil, 0, math.MaxInt); string(found) == body {
		return
	} else if o.wrong++; o.wrong < 4 {
		t.Errorf("node %d, %s: tenant %q, after %q\nis in %s as\n%s\nand in the database\n%s", at, addressOf(&q), q.Tenant, q.After, r.Source, found, body)
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

// TestEveryCachedPageEqualsOneReadAnew runs the page oracle for a few seconds on each kind of
// fleet. `make soak` runs it for longer.
func TestEveryCachedPageEqualsOneReadAnew(t *testing.T) {
	t.Parallel()
	comparePages(t, uint64(time.Now().UnixNano()), pagesFor)
}

// comparePages runs the page oracle for this long on each kind of fleet, one after the other.
func comparePages(t *testing.T, seed uint64, d time.Duration) {
	t.Logf("seed %d", seed)
	t.Run("memory", func(t *testing.T) {
		o := newPageOracle(t, seed, database(t), contract())
		o.start(t)
		o.run(t, d)
	})
	t.Run("Redis", func(t *testing.T) {
		o := newPageOracle(t, seed+1, database(t), contract())
		redis := sandboxtest.Redis(t).URL()
		o.start(t, "--redis-url", redis)
		o.start(t, "--redis-url", redis)
		o.run(t, d)
	})
	t.Run("a standby", func(t *testing.T) {
		primary, url := privateDatabase(t)
		standby := sandboxtest.Standby(t, primary, map[string]string{"recovery_min_apply_delay": fmt.Sprintf("%dms", standbyDelay.Milliseconds())})
		o := newPageOracle(t, seed+2, url, contract())
		redis := sandboxtest.Redis(t).URL()
		for range 2 {
			o.start(t, "--redis-url", redis, "--replica-url", standby.URL("listedge"))
		}
		o.run(t, d)
	})
}

// standbyDelay is how far the standby is behind: less than the writers' pauses.
const standbyDelay = 20 * time.Millisecond

// The queries of the page oracle, as a test makes them and as a client writes them.

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

var (
	searches = []string{"", "", "", "", "a", "ab", "abc", "b1", "äb", "чай"}
	limits   = []int{1, 1, 2, 3, 3, 5, 8, 20, 50, 100}
)

// randomQuery is the first page of any list, or a page from any position on.
func (o *pageOracle) randomQuery(tenant string) page.Query {
	r, l := o.random, pick(o.random, o.shape.set.Lists)
	q := page.Query{List: l, Tenant: l.Owner(tenant), Order: r.IntN(len(l.Orders)), Limit: pick(r, limits), Search: pick(r, searches)}
	if len(l.Search) == 0 {
		q.Search = ""
	}
	for _, f := range l.Filters {
		if r.IntN(2) == 0 {
			q.Match |= pick(r, f.Values).Bit
		}
	}
	if r.IntN(3) == 0 {
		q.After = o.randomPosition(l, q.Order)
	}
	return q
}

// randomPosition is a position where a row may stand that is not there.
func (o *pageOracle) randomPosition(l *list.List, order int) list.Position {
	texts := make([][]byte, l.Selected)
	for i := range texts {
		if text, ok := o.randomValue(o.random, l, i).(string); ok {
			texts[i] = []byte(text)
		}
	}
	row := must1(l.Row(texts, nil))
	return l.Position(&row, order)
}

// randomValue is a value of the column, as Postgres prints it; nil is NULL.
func (o *pageOracle) randomValue(r *rand.Rand, l *list.List, column int) any {
	c := l.Columns[column]
	good := o.shape.good[c.Name]
	folded := slices.ContainsFunc(l.Orders, func(order list.Order) bool { return order.Fold && order.Column == column })
	switch {
	case good != nil:
		return good(r)
	case column == l.Key:
		return randomKey(r, c.Base)
	case column == l.Tenant:
		return pick(r, o.workspaces).tenant
	case !c.NotNull && r.IntN(4) == 0:
		return nil
	case folded:
		return randomName(r)
	case c.Labels != nil:
		return pick(r, c.Labels)
	}
	switch c.Base {
	case "numeric":
		return pick(r, []string{"0", "1", "1.0", "2", "-1", "10.00"})
	case "int2", "int4", "int8":
		return strconv.Itoa(r.IntN(40) - 10)
	case "float8":
		return pick(r, []string{"0", "-1.5", "0.1", "1e+20", "123456.789", "NaN"})
	case "bool":
		return pick(r, []string{"t", "f"})
	case "timestamptz":
		return randomTime(r)
	case "timestamp":
		return strings.TrimSuffix(randomTime(r), "+00")
	case "date":
		return pick(r, []string{"2024-02-29", "2026-01-01", "2026-01-02"})
	case "uuid":
		return randomKey(r, "uuid")
	case "json", "jsonb":
		return pick(r, []string{"{}", `{"a": [1, null, "ä"]}`, "7", "null"})
	}
	return pick(r, []string{"", "abc", "ABC", "xaby", "Äb", "чай"})
}

// randomKey is a key that no row has yet.
func randomKey(r *rand.Rand, base string) string {
	switch base {
	case "int4", "int8":
		return strconv.Itoa(int(r.Int32()) - 1<<30)
	case "uuid":
		var id uuid.UUID
		for i := range id {
			id[i] = byte(r.Uint32())
		}
		return id.String()
	}
	return pick(r, []string{"p_", "P-", "ж", ""}) + strconv.FormatUint(r.Uint64(), 36)
}

// addressOf is the query as a client writes it.
func addressOf(q *page.Query) string {
	v := url.Values{"limit": {strconv.Itoa(q.Limit)}, "sort": {q.List.Orders[q.Order].Name}}
	for _, f := range q.List.Filters {
		for _, value := range f.Values {
			if q.Match&value.Bit != 0 {
				v.Set(f.Name, value.Name)
			}
		}
	}
	if q.Search != "" {
		v.Set("search", q.Search)
	}
	if q.After != "" {
		v.Set("cursor", string(q.AppendCursor(nil)))
	}
	return "/v1/" + q.List.Name + "?" + v.Encode()
}
