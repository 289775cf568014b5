package e2e

import (
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

	"listedge/cache/replica"
	"listedge/cmd/listedge/node"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
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
	workspaces []pageWorkspace
	url        string
	nodes      []pageNode
	random     *rand.Rand
	reference  *origin.Origin

	queries  []page.Query
	compared map[string]int                       // by where the page was
	of       [lists.Collections][lists.Orders]int // pages compared
	wrong    int

	mu    sync.Mutex // guards all below
	kinds map[string]int
}

type pageWorkspace struct {
	id   uuid.UUID
	key  string
	rows int // of each list, more or less: in a short one each change is near to all pages
}

// pageNode is a node: its HTTP address, and its cache in this process.
type pageNode struct {
	*node.Node
	client *testNode
}

const (
	pageQueries = 160
	pageWriters = 2
	pageReaders = 4
)

func newPageOracle(t *testing.T, seed uint64, url string) *pageOracle {
	t.Helper()
	o := &pageOracle{url: url, random: rand.New(rand.NewPCG(seed, 0)),
		kinds: map[string]int{}, compared: map[string]int{}}
	db := must1(postgres.Open(t.Context(), postgres.Options{URL: url, Connections: pageReaders, QueryTimeout: patience}))
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	o.reference = origin.New(db, nil)
	for i := range 4 {
		workspace, key := workspaceWithKey(t, url)
		o.workspaces = append(o.workspaces, pageWorkspace{uuid.MustParse(workspace), key, []int{200, 7}[i/2]})
	}
	w := &pageWriter{conn: connect(t, url), random: o.random, oracle: o}
	for _, workspace := range o.workspaces {
		for c := range lists.Collection(2) {
			err := pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
				for range workspace.rows {
					if err := w.insert(t.Context(), tx, changefeed.List{Workspace: workspace.id, Collection: c}, randomID(o.random)); err != nil {
						return err
					}
				}
				return nil
			})
			must(err)
		}
	}
	o.newQueries(pageQueries)
	return o
}

// start wires and starts one node more.
func (o *pageOracle) start(t *testing.T, flags ...string) {
	t.Helper()
	var f struct {
		node.ListenFlags
		node.Flags
	}
	parser := kong.Must(&f, kong.Vars{"drain": "0s"})
	must1(parser.Parse(append([]string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, flags...)))
	public, private, err := node.Listen(f.ListenFlags)
	must(err)
	n, err := node.New(t.Context(), node.Options{Flags: f.Flags, DatabaseURL: o.url, ReplicationURL: o.url, Settings: map[string]any{},
		Log: node.NewLog(node.NewLineQueue(io.Discard), f.Flags), Public: public, Private: private})
	must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	client := &testNode{url: "http://" + public.Addr().String(), admin: "http://" + private.Addr().String()}
	client.awaitFollowed(t)
	o.nodes = append(o.nodes, pageNode{n, client})
}

// newQueries replaces some of the queries by others: by pages of other lists, and by the next
// pages of known ones.
func (o *pageOracle) newQueries(n int) {
	o.random.Shuffle(len(o.queries), func(i, j int) { o.queries[i], o.queries[j] = o.queries[j], o.queries[i] })
	o.queries = o.queries[min(len(o.queries), max(0, len(o.queries)+n-pageQueries)):]
	for range n {
		o.queries = append(o.queries, randomQuery(o.random, o.workspaces[len(o.workspaces)-1-o.random.IntN(6)%4].id)) // more often a short list
	}
}

// committed counts a transaction.
func (o *pageOracle) committed(kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kinds[kind]++
}

// comparedAll says whether pages of all orders and collections were compared.
func (o *pageOracle) comparedAll() bool {
	for _, c := range lists.All {
		if slices.ContainsFunc(c.Orders(), func(order lists.Order) bool { return o.of[c][order] == 0 }) {
			return false
		}
	}
	return true
}

// run writes, reads and compares until d is over and something was shown.
func (o *pageOracle) run(t *testing.T, d time.Duration) {
	var writers []*pageWriter
	for range pageWriters {
		writers = append(writers, &pageWriter{conn: connect(t, o.url), random: rand.New(rand.NewPCG(o.random.Uint64(), 0)), oracle: o})
	}
	rounds := 0
	shown := o.comparedAll
	for began := time.Now(); !t.Failed() && (time.Since(began) < d || !shown() && time.Since(began) < d+patience); rounds++ {
		o.write(t, writers)
		o.compare(t, time.Now())
	}
	transactions := 0
	for _, n := range o.kinds {
		transactions += n
	}
	t.Logf("%d rounds, %d changes of lists %v; pages compared: %v, %v", rounds, transactions, o.kinds, o.compared, o.of)
	for i, n := range o.nodes {
		t.Logf("node %d: replica %+v", i, n.Cache.Stats().Replica)
		if n.Cache.Stats().Replica.Fills[replica.Inconsistent] > 0 {
			t.Error("what a statement returned differs from what the node had applied")
		}
	}
	if !shown() {
		t.Error("of some kinds no page was compared: nothing was shown of them")
	}
}

// write runs the writers and the readers, and returns when all writers have ended.
func (o *pageOracle) write(t *testing.T, writers []*pageWriter) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	read := func(n pageNode, q *page.Query) {
		if _, err := n.client.try("GET", addressOf(q), o.workspace(q.Workspace).key); err != nil {
			t.Error(err)
		}
	}
	for i, q := range o.queries { // so that most pages are there when something changes
		n := o.nodes[i%len(o.nodes)]
		if _, ok := n.Cache.Hit(&q, time.Now()); !ok {
			read(n, &q)
		}
	}
	reading, stop := context.WithCancel(ctx)
	var writing, readers sync.WaitGroup
	for _, w := range writers {
		steps := w.random.IntN(4)
		writing.Go(func() {
			for range steps {
				switch err := w.step(ctx); postgres.Code(err) {
				case "40P01", "55P03", "23505": // two writers blocked each other, or replaced the same row
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
				q := pick(random, o.queries)
				read(o.nodes[i%len(o.nodes)], &q)
			}
		})
	}
	writing.Wait()
	stop()
	readers.Wait()
}

func (o *pageOracle) workspace(id uuid.UUID) *pageWorkspace {
	return &o.workspaces[slices.IndexFunc(o.workspaces, func(w pageWorkspace) bool { return w.id == id })]
}

// compare reads pages from the database while nothing is written, and compares. It leaves out
// some pages, so that several pauses' changes are compared with them later, at once.
func (o *pageOracle) compare(t *testing.T, quiet time.Time) {
	chosen := slices.DeleteFunc(slices.Clone(o.queries), func(page.Query) bool { return o.random.IntN(3) == 0 })
	type read struct{ body, next string }
	anew := make([]read, len(chosen))
	var next atomic.Int64
	var reading sync.WaitGroup
	for range pageReaders {
		reading.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(chosen); i = int(next.Add(1)) - 1 {
				var err error
				rows, err := o.reference.Fetch(t.Context(), chosen[i], "")
				body, next := pageOf(&chosen[i], &rows)
				if anew[i] = (read{body, next}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	reading.Wait()
	for i, n := range o.nodes {
		within(t, patience, fmt.Sprintf("node %d knows all that was written", i), func() bool { return n.Cache.Stats().ProofAge < time.Since(quiet) })
		for j, q := range chosen {
			o.compareOn(t, i, n, q, anew[j].body, quiet)
		}
	}
	o.newQueries(pageQueries / 16)
	for range pageQueries / 16 { // pages that a walk requests
		i := o.random.IntN(len(chosen))
		q := chosen[i]
		var err error
		if q.After, err = q.ParseCursor(new([]byte), []byte(anew[i].next)); err == nil {
			o.queries[o.random.IntN(len(o.queries))] = q
		}
	}
}

// compareOn compares the entry of the query in a node's cache with the page.
func (o *pageOracle) compareOn(t *testing.T, at int, n pageNode, q page.Query, body string, quiet time.Time) {
	now := time.Now()
	r, ok := n.Cache.Hit(&q, now)
	if !ok || r.Age >= now.Sub(quiet) { // it may lack the last writes
		return
	}
	o.compared[r.Source.String()]++
	o.of[q.Collection][q.Sort]++
	if found, _ := r.Entry.AppendBody(nil, 0, math.MaxInt); string(found) == body {
		return
	} else if o.wrong++; o.wrong < 4 {
		t.Errorf("node %d, %s: %s\nis in %s as\n%s\nand in the database\n%s", at, addressOf(&q), describeQuery(&q), r.Source, found, body)
	}
}

func describeQuery(q *page.Query) string {
	return strings.TrimSpace(fmt.Sprintf("%+v", *q))
}

// pageOf is the body and the next cursor of the query's page among the rows that it read.
func pageOf(q *page.Query, rows *page.Read) (body, next string) {
	n := min(q.Limit, len(rows.Rows))
	texts, last := make([]string, n), (*lists.Row)(nil)
	for i := range texts {
		texts[i], last = rows.Rows[i].Text(), &rows.Rows[i]
	}
	head, end, next := q.Frame(last, n < len(rows.Rows) || !rows.End)
	return head + strings.Join(texts, ",") + end, next
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
		o := newPageOracle(t, seed, database(t))
		o.start(t)
		o.run(t, d)
	})
	t.Run("Redis", func(t *testing.T) {
		o := newPageOracle(t, seed+1, database(t))
		redis := sandboxtest.Redis(t).URL()
		o.start(t, "--redis-url", redis)
		o.start(t, "--redis-url", redis)
		o.run(t, d)
	})
	t.Run("a standby", func(t *testing.T) {
		primary, url := privateDatabase(t)
		standby := sandboxtest.Standby(t, primary, map[string]string{"recovery_min_apply_delay": fmt.Sprintf("%dms", standbyDelay.Milliseconds())})
		o := newPageOracle(t, seed+2, url)
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
func randomQuery(r *rand.Rand, workspace uuid.UUID) page.Query {
	q := page.Query{Workspace: workspace, Collection: pick(r, lists.All), Limit: pick(r, limits), Search: pick(r, searches)}
	q.Sort = pick(r, q.Collection.Orders())
	for _, f := range q.Collection.Filters() {
		if r.IntN(2) == 0 {
			q.Filter |= pick(r, f.Values).Flag
		}
	}
	if r.IntN(3) == 0 {
		q.After = (&lists.Row{ID: randomID(r), CreatedAt: randomTime(r).UnixMicro()}).SetTexts(lists.NameKey(randomName(r)), "").Position(q.Sort)
	}
	return q
}

func randomID(r *rand.Rand) (id uuid.UUID) {
	for i := range id {
		id[i] = byte(r.Uint32())
	}
	return id
}

// addressOf is the query as a client writes it.
func addressOf(q *page.Query) string {
	v := url.Values{"limit": {strconv.Itoa(q.Limit)}, "sort": {q.Sort.String()}}
	for _, f := range q.Collection.Filters() {
		for _, value := range f.Values {
			if q.Filter&value.Flag != 0 {
				v.Set(f.Parameter, value.Name)
			}
		}
	}
	if q.Search != "" {
		v.Set("search", q.Search)
	}
	if q.After != "" {
		v.Set("cursor", string(q.AppendCursor(nil)))
	}
	return "/v1/" + q.Collection.String() + "?" + v.Encode()
}
