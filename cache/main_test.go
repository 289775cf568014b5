package cache_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/lists"
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

// inRedis is the name of a key's page in Redis.
func inRedis(key []byte) string {
	return "listedge:page:" + ofShop.Digest() + ":" + string(key)
}

// open makes a cache that is closed before the test's other clean-ups. Options that are
// not set get large values, and Redis a long timeout.
func open(t testing.TB, o cache.Options) *cache.Cache {
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
	c, err := cache.New(o)
	if err != nil {
		t.Fatal(err)
	}
	c.SetRedisBudgets(patient, patient)
	t.Cleanup(func() { closeCache(t, c) })
	return c
}

func closeCache(t testing.TB, c *cache.Cache) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patient)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// eventually waits until the condition is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	sandboxtest.Within(t, patient, what, ok)
}

// view is a View: its body is its rows. Each name has a list of its own.
type view struct {
	name  string
	list  replica.Key
	after lists.Position
	limit int
}

// keyOf is the key of the first page of a list.
func keyOf(name string) []byte { return cache.AppendKey(nil, [16]byte{1}, []byte(name)) }

// pageOf is the first page of the list whose first page has the key.
func pageOf(key []byte) *view {
	table := changefeed.List{Workspace: uuid.NewSHA1(uuid.Nil, key), Collection: lists.Items}
	return &view{string(key), replica.Key{Table: table}, "", 3}
}

func (p *view) Key() []byte           { return append([]byte(p.name), p.after...) }
func (p *view) After() lists.Position { return p.after }
func (p *view) Limit() int            { return p.limit }
func (p *view) List() replica.Key     { return p.list }

func (p *view) Behind(row *lists.Row) cache.View {
	return &view{p.name, p.list, row.Position(lists.ByCreatedAt), p.limit}
}

func (p *view) Frame(last *lists.Row, more bool) (head, end, next string) {
	if more {
		next = "behind " + last.Text()
	}
	return "", "", next
}

// text is the texts of the entry's rows.
func text(e *cache.Entry) string {
	body, _ := e.AppendBody(nil, 0, math.MaxInt)
	return strings.ReplaceAll(string(body), ",", " ")
}

// rowsOf makes rows of these texts. A list has them in this order, by their numbers from 0.
func rowsOf(texts ...string) (rows []lists.Row) {
	for i, text := range texts {
		rows = append(rows, rowAt(i, text))
	}
	return rows
}

func rowAt(i int, text string) lists.Row {
	row := (&lists.Row{ID: uuid.UUID{15: byte(i)}, CreatedAt: -int64(i)}).SetTexts("", text)
	if text == "" {
		row.State = lists.TextUnknown
	}
	return *row
}

// shows is what a statement returned of a list that has these rows alone.
func shows(texts ...string) page.Read {
	return page.Read{Rows: rowsOf(texts...), End: true}
}

// brings is a fill that succeeds at once.
func brings(body string) cache.Fill {
	return cache.Fill{Primary: func(context.Context, string) (page.Read, error) { return shows(body), nil }}
}

// fails is a fill that fails at once.
func fails(err error) cache.Fill {
	return cache.Fill{Primary: func(context.Context, string) (page.Read, error) { return page.Read{}, err }}
}

// of is a fill of the key's page.
func of(key []byte, f cache.Fill) cache.Fill {
	f.View = pageOf(key)
	return f
}

// ask is a Forward of the key's page.
func ask(c *cache.Cache, key []byte, fill cache.Fill) (cache.Result, error) {
	return c.Forward(key, of(key, fill))
}

// forward is one that must not fail.
func forward(t testing.TB, c *cache.Cache, key []byte, fill cache.Fill) cache.Result {
	t.Helper()
	r, err := ask(c, key, fill)
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
	caches  []*cache.Cache
	at      changefeed.Position
	xid     uint64 // of the last transaction, and its LSN
	run     string
	settled []*changefeed.Change // since the last heartbeat
}

const ofServer = "7400000000000000001/1"

// follow lets the caches join the log.
func follow(caches ...*cache.Cache) *feed {
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
func (f *feed) beat() {
	f.at.N++
	for _, c := range f.caches {
		c.Beat(changefeed.Beat{Proof: f.proof(time.Now()), Snapshot: f.snapshot(), Settled: f.settled})
	}
	f.settled = nil
}

func (f *feed) proof(of time.Time) changefeed.Proof {
	return changefeed.Proof{Moment: of, At: f.at, Timeline: ofServer, StartedAt: f.run, LSN: f.xid}
}

func (f *feed) snapshot() changefeed.Snapshot {
	return changefeed.Snapshot{Xmin: f.xid + 1, Xmax: f.xid + 1}
}

// change is a transaction that leaves rows of the key's list.
func (f *feed) change(key []byte, rows ...lists.Row) {
	f.xid++
	f.settled = append(f.settled, &changefeed.Change{XID: f.xid, LSN: f.xid, Lists: []changefeed.Touched{{List: pageOf(key).List().Table, Rows: rows}}})
}

// reads is a fill by a statement on the primary, as the database is when it is made.
func (f *feed) reads(result page.Read) cache.Fill {
	result.At = changefeed.ReadPoint{StartedAt: f.run, Snapshot: f.snapshot()}
	return cache.Fill{Primary: func(context.Context, string) (page.Read, error) { return result, nil }}
}
