package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/cache/freshness"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// fakeFollower writes heartbeats to the log, and changes on demand. It has no Postgres.
// The LSN of a transaction is its id.
type fakeFollower struct {
	t      testing.TB
	log    *changefeed.Local
	mu     sync.Mutex // guards all below
	epoch  string
	at     changefeed.Position
	silent bool
	run    string
	held   bool // heartbeats do not see the last transaction yet
	body   string
	xid    uint64
	ctx    context.Context // ends with stop
	stop   context.CancelFunc
	done   sync.WaitGroup

	applied atomic.Uint64 // see counter
}

func startFollower(t testing.TB) *fakeFollower {
	ctx, stop := context.WithCancel(context.Background())
	b := &fakeFollower{t: t, log: changefeed.NewLocal(), xid: 100, ctx: ctx, stop: stop}
	b.beginTerm("e")
	b.done.Go(func() {
		for ctx.Err() == nil {
			b.mu.Lock()
			if !b.silent {
				snapshot := fmt.Sprintf("%d:%d:", b.xid, b.xid)
				if b.held {
					snapshot = fmt.Sprintf("%d:%d:%d", b.xid-1, b.xid, b.xid-1)
				}
				b.append(changefeed.Entry{Heartbeat: &changefeed.Heartbeat{LSN: b.xid - 1, Snapshot: snapshot, Server: "s/1", Run: b.run, After: b.at}})
			}
			b.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { stop(); b.done.Wait() })
	return b
}

func (b *fakeFollower) append(e changefeed.Entry) {
	b.at.N++
	e.Position = b.at
	if err := b.log.Append(context.Background(), b.epoch, e); err != nil {
		b.t.Error(err)
	}
}

func (b *fakeFollower) beginTerm(epoch string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	previous, _ := b.log.Last(context.Background(), epoch)
	b.epoch, b.at = epoch, changefeed.Position{Term: b.xid}
	b.xid++
	b.append(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: previous}})
	present, _ := b.log.Epoch(context.Background())
	_ = b.log.SetEpoch(context.Background(), present, epoch)
}

// change is a transaction that is visible at once.
func (b *fakeFollower) change(lists ...changefeed.List) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.append(changefeed.Entry{Change: &changefeed.Change{XID: b.xid, LSN: b.xid, Lists: lists}})
	b.xid++
}

// changeRows is one that names the rows of a list.
func (b *fakeFollower) changeRows(list changefeed.List, rows ...lists.Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.append(changefeed.Entry{Change: &changefeed.Change{XID: b.xid, LSN: b.xid, CommittedAt: time.Now().UnixMicro(),
		Lists: []changefeed.List{list}, Rows: [][]lists.Row{rows}}})
	b.xid++
}

// skip leaves a gap in the log.
func (b *fakeFollower) skip() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at.N += 10
}

// unknown appends an entry of a kind that only a newer version knows.
func (b *fakeFollower) undecodable() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.append(changefeed.Entry{})
}

func (b *fakeFollower) beSilent(silent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent = silent
}

func (b *fakeFollower) holdBack(held bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = held
}

// brings is a fill that returns this body. Its statement sees all transactions up to now.
func (b *fakeFollower) brings(body string) Fill {
	b.mu.Lock()
	b.body = body
	b.mu.Unlock()
	return Fill{Primary: func(context.Context, string) (FillResult, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		body := b.body
		return FillResult{Body: []byte(body), Next: "next of " + body, Snapshot: fmt.Sprintf("%d:%d:", b.xid, b.xid)}, nil
	}}
}

// replays is a fill from a standby that has replayed everything.
func (b *fakeFollower) replays(body string) (FillResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return FillResult{Body: []byte(body), Server: "s/1", LSN: b.xid - 1}, nil
}

// open makes a cache that follows the log, until the test ends or the fakeFollower is
// stopped.
func (b *fakeFollower) open(o Options) (*Cache, *changefeed.Subscriber) {
	b.t.Helper()
	return openFollowing(b.t, b.log, o, b)
}

func openFollowing(t testing.TB, log changefeed.Log, o Options, b *fakeFollower) (*Cache, *changefeed.Subscriber) {
	t.Helper()
	if o.Followed == nil {
		o.Followed = followedAt(ofShop, 1)
	}
	c := open(t, o)
	feed := changefeed.NewSubscriber(log, o.Followed, slog.New(slog.DiscardHandler), c, counter{&b.applied})
	ctx, stop := context.WithCancel(b.ctx)
	var done sync.WaitGroup
	run := func() { feed.Run(ctx) }
	done.Go(run)
	t.Cleanup(func() { stop(); done.Wait() })
	return c, feed
}

// counter counts the changes and proofs that the listeners before it have received.
type counter struct{ applied *atomic.Uint64 }

func (counter) Reset(string, changefeed.ResetCause) {}

func (c counter) Changed(changefeed.Position, *changefeed.Change) { c.applied.Add(1) }

func (counter) Settled(*changefeed.Change) {}

func (counter) Beat(changefeed.Beat) {}

func (c counter) ValidThrough(changefeed.Proof) { c.applied.Add(1) }

func mode(c *Cache, m Mode) func() bool { return func() bool { return c.Mode() == m } }

// request returns what a request gets, and whether it was a hit.
func request(t *testing.T, c *Cache, fill Fill) (body string, hit bool) {
	t.Helper()
	if r, ok := c.Hit(keyOf("q"), time.Now()); ok {
		r.CountRequest()
		return string(r.Entry.Body), true
	}
	r, err := c.Forward(keyOf("q"), listA, fill)
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Entry.Body), false
}

// After each thing that can happen to the log, a node is trusted again by itself, and
// serves no page from before as fresh.
func TestFollowing(t *testing.T) {
	b := startFollower(t)
	c, feed := b.open(Options{TTL: time.Minute, MaxStale: time.Minute, Bound: testBound})
	resyncs := func(cause string) uint64 { return feed.Stats().Resets[cause] }
	kept := func(body string) { // once filled by a trusted node, a page is a hit
		t.Helper()
		eventually(t, "trusted", mode(c, ModeFollowed))
		eventually(t, "a hit on "+body, func() bool { got, hit := request(t, c, b.brings(body)); return hit && got == body })
	}
	kept("first")

	b.change(listB)
	kept("first")
	b.change(listA)
	kept("second")

	b.skip()
	eventually(t, "a gap", func() bool { return resyncs("gap") == 1 })
	kept("third")
	if n := resyncs("gap"); n != 1 {
		t.Errorf("one gap was met %d times", n)
	}

	b.undecodable() // and the entry after it in the same term
	eventually(t, "an entry that cannot be decoded", func() bool { return resyncs("undecodable") == 1 })
	kept("of another version")
	if n, gaps := resyncs("undecodable"), resyncs("gap"); n != 1 || gaps != 1 {
		t.Errorf("met %d times, %d gaps", n, gaps)
	}

	b.beSilent(true)
	began := time.Now()
	eventually(t, "untrusted", mode(c, ModeUntrusted))
	if took := time.Since(began); took > testBound+patient/10 {
		t.Errorf("trusted for %s without a heartbeat", took)
	}
	eventually(t, "no hit", func() bool { got, hit := request(t, c, b.brings("fourth")); return !hit && got == "fourth" })
	b.beSilent(false)
	kept("fourth")

	b.beginTerm("e") // another follower, the same epoch
	kept("fourth")
	if n := resyncs("gap"); n != 1 {
		t.Errorf("a take-over left a gap (%d)", n)
	}

	b.beginTerm("f")
	eventually(t, "another epoch", func() bool { return resyncs("epoch") == 1 })
	kept("fifth")

	_ = b.log.SetEpoch(t.Context(), "f", "") // Redis lost it, for a while
	kept("fifth")

	c.SetTTLMode(true)
	if c.Mode() != ModeTTL {
		t.Error(c.Mode())
	}
	b.change(listA)
	if body, hit := request(t, c, b.brings("sixth")); !hit || body != "fifth" {
		t.Errorf("by age: %q, hit %t", body, hit)
	}
	c.SetTTLMode(false)
	kept("sixth")
}

// A result names the change that made its stale entry stale: the entry that it replaces,
// or that it serves because the fill failed.
func TestAResultNamesTheChange(t *testing.T) {
	b := startFollower(t)
	c, _ := b.open(Options{TTL: time.Minute, MaxStale: time.Minute, Bound: patient})
	eventually(t, "trusted", mode(c, ModeFollowed))
	shown := uuid.UUID{7}
	fill := b.brings("page")
	read := fill.Primary
	fill.Primary = func(ctx context.Context, run string) (FillResult, error) {
		f, err := read(ctx, run)
		f.Extent = &freshness.Extent{Tags: []uint32{freshness.Tag(shown)}}
		return f, err
	}
	if r, err := c.Forward(keyOf("q"), listA, fill); err != nil || r.Invalidation != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, test := range []struct {
		name string
		fill Fill
	}{{"replaced", fill}, {"served stale", fails(errOrigin)}} {
		t.Run(test.name, func(t *testing.T) {
			began := time.Now()
			b.changeRows(listA, lists.Row{ID: shown})
			eventually(t, "the change is applied", func() bool { return c.Stats().Changes == uint64(i+1) })
			b.mu.Lock()
			xid := b.xid - 1
			b.mu.Unlock()
			r, err := c.Forward(keyOf("q"), listA, test.fill)
			if i := r.Invalidation; err != nil || !r.HadStale || i == nil || i.Concern != freshness.ShowsRow || i.XID != xid || i.Position.N == 0 || i.CommittedAt < began.UnixMicro() {
				t.Errorf("%+v, %+v, %v", r, r.Invalidation, err)
			}
		})
	}
	if s := c.Stats(); s.Compared["shown"] == 0 || s.Changes != 2 || s.RingChanges != 2 || s.RingBytes == 0 {
		t.Errorf("%+v", s)
	}
}

// A page of another server than the followed primary is not served: the stale entry is
// served, marked, or the request fails.
func TestAnAnswerOfAnotherServerIsAnError(t *testing.T) {
	b := startFollower(t)
	b.mu.Lock()
	b.run = "followed"
	b.mu.Unlock()
	c, _ := b.open(Options{TTL: time.Minute, MaxStale: time.Minute, Bound: patient})
	eventually(t, "trusted", mode(c, ModeFollowed))
	from := func(run string) Fill {
		fill := b.brings("page of " + run)
		read := fill.Primary
		fill.Primary = func(ctx context.Context, known string) (FillResult, error) {
			if known != "followed" {
				t.Errorf("asked of %q", known)
			}
			filled, err := read(ctx, known)
			filled.Run = run
			return filled, err
		}
		return fill
	}
	says := Fill{Primary: func(context.Context, string) (FillResult, error) {
		return FillResult{}, ErrWrongServer
	}}
	refused := func(want uint64) {
		t.Helper()
		if n := c.Stats().Rejected["wrong-server"]; n != want {
			t.Errorf("%d refused, not %d", n, want)
		}
	}
	for i, fill := range []Fill{from("another"), says} {
		if r, err := c.Forward(keyOf("q"), listA, fill); !errors.Is(err, ErrWrongServer) {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err := c.Bypass(keyOf("q"), listA, fill); !errors.Is(err, ErrWrongServer) {
			t.Errorf("%+v, %v", r, err)
		}
		refused(uint64(2 * (i + 1)))
	}
	if _, hit := request(t, c, from("followed")); hit {
		t.Error("a refused page was kept")
	}
	if body, hit := request(t, c, from("followed")); !hit || body != "page of followed" {
		t.Errorf("%q, hit %t", body, hit)
	}
	before := b.applied.Load()
	b.change(listA)
	eventually(t, "the change is applied", func() bool { return b.applied.Load() > before })
	r, err := c.Forward(keyOf("q"), listA, from("another"))
	if err != nil || !errors.Is(r.Err, ErrWrongServer) || string(r.Entry.Body) != "page of followed" {
		t.Errorf("%+v, %v", r, err)
	}
	if server, run := c.Primary(); server != "s/1" || run != "followed" {
		t.Errorf("%s, %s", server, run)
	}
	b.beSilent(true)
	b.beginTerm("f")
	eventually(t, "another epoch", mode(c, ModeUntrusted))
	if server, run := c.Primary(); server != "s/1" || run != "" {
		t.Errorf("%s, %s", server, run)
	}
}
