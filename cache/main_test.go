package cache_test

import (
	"context"
	"errors"
	"math"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	redistest.Silence()
	goleak.VerifyTestMain(m)
}

// patient is a time limit for hangs. No test is about it, so it suits a slow machine.
const patient = time.Minute

// What is promised.
const (
	redisBudget   = 20 * time.Millisecond  // that a request waits for its page in Redis
	staleWait     = 800 * time.Millisecond // that it waits for a fresh page if there is a stale one
	fillPause     = time.Second            // after a failure, while stale pages are served at once
	storeInterval = 2 * time.Minute        // until a page that is served is stored again
	maxRedisEntry = 1 << 20                // bytes of a page in Redis
)

var errPaused = errors.New("the last fill failed moments ago")

var startRedis = redistest.Start

// ofShop is the database that the pages of tests are read from.
var ofShop = fleet.Identity{System: "7400000000000000001", Database: 16384, Name: "shop"}

func followedAt(identity fleet.Identity, timeline uint32) *fleet.Followed {
	f := &fleet.Followed{}
	f.SetServer(fleet.Server{Identity: identity, Timeline: timeline})
	return f
}

// hook comes between a client and Redis, where it has a function.
type hook struct {
	one  func(ctx context.Context, c redis.Cmder, next redis.ProcessHook) error
	many func(ctx context.Context, c []redis.Cmder, next redis.ProcessPipelineHook) error
}

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.one == nil {
		return next
	}
	return func(ctx context.Context, c redis.Cmder) error { return h.one(ctx, c, next) }
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.many == nil {
		return next
	}
	return func(ctx context.Context, c []redis.Cmder) error { return h.many(ctx, c, next) }
}

// inRedis is the name of a query's page in Redis.
func inRedis(q *page.Query) string {
	return "listedge:page:" + ofShop.Digest() + ":" + string(q.AppendKey(nil))
}

// open makes a cache that is closed before the test's other clean-ups.
func open(t testing.TB, o cache.Options) *opened {
	t.Helper()
	c := openFor(t, o)
	t.Cleanup(func() { closeCache(t, c) })
	return c
}

// openFor makes a cache that the test closes. Options that are not set get large values, and
// Redis a long timeout.
func openFor(t testing.TB, o cache.Options) *opened {
	t.Helper()
	if o.Memory == 0 {
		o.Memory = 8 << 20
	}
	if o.FillTimeout == 0 {
		o.FillTimeout = patient
	}
	if o.Followed == nil {
		o.Followed = followedAt(ofShop, 1)
	}
	if o.Clock == nil {
		o.Clock = boottime.New()
	}
	if o.CommitApplied == nil {
		o.CommitApplied = func(time.Duration) {}
	}
	opened := &opened{mismatched: func(m replica.Mismatch) { t.Errorf("%+v", m) }}
	o.Mismatched = func(m replica.Mismatch) { opened.mismatched(m) }
	from := &origins{of: map[page.Query]origin{}}
	o.Origin = from
	c, err := cache.New(o)
	if err != nil {
		t.Fatal(err)
	}
	c.SetRedisBudgets(patient, patient)
	opened.Cache, opened.origins = c, from
	return opened
}

func closeCache(t testing.TB, c *opened) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patient)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

var eventually = sandboxtest.Eventually

// opened is a cache of which each request says what the database answers it.
type opened struct {
	*cache.Cache
	origins    *origins
	mismatched func(m replica.Mismatch)
}

// origin reads from the primary and from a standby, as cache.Reader says; without a Standby there is none.
type origin struct {
	Primary func(ctx context.Context, run string) (page.Read, error)
	Standby func(ctx context.Context, primary changefeed.Proof) (page.Read, error)
	Rows    func(ctx context.Context, keys []string, run string) (page.Read, error)
}

// origins has the latest origin of each query.
type origins struct {
	mu     sync.Mutex // guards all below
	of     map[page.Query]origin
	latest origin

	verify func(q page.Query) (page.Read, error)
}

func (o *origins) set(q *page.Query, to origin) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of[q.Clone()], o.latest = to, to
}

func (o *origins) origin(q page.Query) origin {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[q]
}

func (o *origins) Fetch(ctx context.Context, q page.Query, run string) (page.Read, error) {
	return o.origin(q).Primary(ctx, run)
}

func (o *origins) FetchFromStandby(ctx context.Context, q page.Query, primary changefeed.Proof) (page.Read, error) {
	return o.origin(q).Standby(ctx, primary)
}

func (o *origins) FetchRows(ctx context.Context, q page.Query, keys []string, run string) (page.Read, error) {
	return o.origin(q).Rows(ctx, keys, run)
}

func (o *origins) Verify(_ context.Context, q page.Query, _ string) (page.Read, error) {
	return o.verify(q)
}

func (o *origins) HasStandbys() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.latest.Standby != nil
}

// queryOf is the first page of a list of that name.
func queryOf(name string) *page.Query {
	return &page.Query{List: listtest.Items, Tenant: name, Limit: 3}
}

// behind is the page behind a row.
func behind(q *page.Query, row *list.Row) *page.Query {
	next := q.Behind(row)
	return &next
}

// bodyOf is the whole body of an entry.
func bodyOf(e *cache.Entry) string {
	body, _ := e.AppendBody(nil, 0, math.MaxInt)
	return string(body)
}

// text is the texts of the entry's rows: see rowAt.
func text(e *cache.Entry) string {
	var texts []string
	for _, found := range regexp.MustCompile(`"sku":"([^"]*)"`).FindAllStringSubmatch(bodyOf(e), -1) {
		texts = append(texts, found[1])
	}
	return strings.Join(texts, " ")
}

// rowsOf makes rows of these texts. A list has them in this order, by their numbers from 0.
func rowsOf(texts ...string) (rows []list.Row) {
	for i, text := range texts {
		rows = append(rows, rowAt(i, text))
	}
	return rows
}

func rowAt(i int, text string) list.Row {
	row := listtest.Item(i, "id", listtest.ID(i+10), "sku", text)
	if text == "" {
		row.ForgetText()
	}
	return row
}

// shows is what a statement returned of a list that has these rows alone.
func shows(texts ...string) page.Read {
	return page.Read{Rows: rowsOf(texts...), End: true}
}

// brings is a fill that succeeds at once.
func brings(body string) origin {
	return origin{Primary: func(context.Context, string) (page.Read, error) { return shows(body), nil }}
}

// fails is a fill that fails at once.
func fails(err error) origin {
	return origin{Primary: func(context.Context, string) (page.Read, error) { return page.Read{}, err }}
}

// ask is a Forward, which reads from there.
func ask(c *opened, q *page.Query, from origin) (cache.Result, error) {
	c.origins.set(q, from)
	return c.Forward(q, time.Now(), func() {})
}

// bypass is a Bypass.
func bypass(c *opened, q *page.Query, from origin) (cache.Result, error) {
	c.origins.set(q, from)
	return c.Bypass(q, func() {})
}

// forward is one that must not fail.
func forward(t testing.TB, c *opened, q *page.Query, from origin) cache.Result {
	t.Helper()
	r, err := ask(c, q, from)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// want is the expected Result, without its age.
type want struct {
	body      string
	source    cache.Source
	hadStale  bool
	collapsed bool
	err       error
}

func (w want) check(t testing.TB, r cache.Result, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v, want %+v", err, w)
	}
	got := want{text(r.Entry), r.Source, r.HadStale, r.Collapsed, r.Err}
	if w.err != nil && r.Err != nil && (errors.Is(r.Err, w.err) || r.Err.Error() == w.err.Error()) {
		got.err = w.err
	}
	if got != w || r.Age < 0 {
		t.Fatalf("%+v, %v old, want %+v", got, r.Age, w)
	}
}

// feed is the log that caches follow, and the primary: each transaction is visible when it
// is in the log.
type feed struct {
	caches  []*opened
	at      changefeed.Position
	xid     uint64 // of the last transaction, and its LSN
	run     string
	settled []*changefeed.Change // since the last heartbeat
}

const ofServer = "7400000000000000001/1"

// follow lets the caches join the log.
func follow(caches ...*opened) *feed {
	f := &feed{caches: caches, at: changefeed.Position{Term: 1}, xid: 99, run: "run"}
	f.reset("epoch")
	f.beat()
	return f
}

func (f *feed) reset(epoch string) {
	for _, c := range f.caches {
		c.Reset(epoch, changefeed.ResetGap)
	}
}

// beat lets the caches apply all that is in the log.
func (f *feed) beat() { f.beatOf(time.Now()) }

// beatOf is a beat that proves what was visible at a moment.
func (f *feed) beatOf(moment time.Time) {
	f.at.N++
	for _, c := range f.caches {
		c.Beat(changefeed.Beat{Proof: f.proof(moment), Snapshot: f.snapshot(), Followed: []*list.List{listtest.Items}, Settled: f.settled})
	}
	f.settled = nil
}

func (f *feed) proof(of time.Time) changefeed.Proof {
	return changefeed.Proof{Moment: of, At: f.at, Timeline: ofServer, StartedAt: f.run, LSN: f.xid}
}

func (f *feed) snapshot() changefeed.Snapshot {
	return changefeed.Snapshot{Xmin: f.xid + 1, Xmax: f.xid + 1}
}

// change is a transaction that leaves rows of the query's list.
func (f *feed) change(q *page.Query, rows ...list.Row) {
	f.xid++
	f.settled = append(f.settled, &changefeed.Change{XID: f.xid, LSN: f.xid,
		Touched: []changefeed.Touched{{Table: changefeed.Table{List: q.List, Tenant: q.Tenant}, Rows: rows}}})
}

// reads is a fill by a statement on the primary, as the database is when it is made.
func (f *feed) reads(result page.Read) origin {
	result.At = changefeed.ReadPoint{StartedAt: f.run, Snapshot: f.snapshot()}
	return origin{Primary: func(context.Context, string) (page.Read, error) { return result, nil }}
}
