package cache

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/google/uuid"

	"listedge/cache/freshness"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

func TestIsHot(t *testing.T) {
	for _, c := range []struct {
		requests uint64
		elapsed  time.Duration
		want     bool
	}{{0, 0, false}, {0, time.Hour, false}, {1, time.Millisecond, true}, {1, 250 * time.Millisecond, true}, {1, 251 * time.Millisecond, false},
		{39, 10 * time.Second, false}, {40, 10 * time.Second, true}} {
		if got := isHot(c.requests, c.elapsed); got != c.want {
			t.Errorf("%d requests in %s: %t", c.requests, c.elapsed, got)
		}
	}
}

// counted counts the queries of a fill.
func counted(queries *atomic.Int64, fill Fill) Fill {
	return Fill{Primary: func(ctx context.Context, run string) (FillResult, error) {
		queries.Add(1)
		return fill.Primary(ctx, run)
	}}
}

// following is a cache that follows a fakeFollower and has proof.
func followed(t *testing.T, o Options) (*fakeFollower, *Cache) {
	b := startFollower(t)
	o.TTL, o.MaxStale, o.Bound = time.Minute, time.Minute, testBound
	c, _ := b.open(o)
	eventually(t, "trusted", mode(c, ModeFollowed))
	return b, c
}

// makeHot requests an entry until it is refreshed with its list.
func makeHot(t *testing.T, b *fakeFollower, c *Cache, fill Fill) {
	t.Helper()
	eventually(t, "a hot entry", func() bool {
		b.change(listA)
		for range 10 {
			request(t, c, fill)
		}
		c.refresher.mu.Lock()
		defer c.refresher.mu.Unlock()
		return len(c.refresher.hot[listA]) == 1
	})
}

func TestAHotEntryIsRefreshedAheadOfRequests(t *testing.T) {
	b, c := followed(t, Options{})
	var queries atomic.Int64
	fill := counted(&queries, b.brings("old"))
	makeHot(t, b, c, fill)
	eventually(t, "a hit", func() bool { _, hit := request(t, c, fill); return hit })
	before := queries.Load()
	b.brings("new")
	b.change(listA)
	eventually(t, "the page is read, with nobody asking", func() bool {
		return queries.Load() == before+1 && string(c.memory.get(keyOf("q")).entry.Load().Body) == "new"
	})
	if body, hit := request(t, c, fill); !hit || body != "new" {
		t.Errorf("%q, hit %t", body, hit)
	}
	if n := queries.Load() - before; n != 1 {
		t.Errorf("%d queries for one change", n)
	}
	// It had one request since, so the next change refreshes it once more, and later ones do not.
	for range 20 {
		b.change(listA)
		before := b.applied.Load()
		eventually(t, "it is applied", func() bool { return b.applied.Load() > before })
	}
	awaitRefreshes(c)
	// (One refresh, and another if the next change came during the first.)
	if n, most := queries.Load()-before, int64(2+len(visibilityWaits)); n > most {
		t.Errorf("%d queries for a page that had one request", n)
	}
	eventually(t, "cold", func() bool {
		b.change(listA)
		c.refresher.mu.Lock()
		defer c.refresher.mu.Unlock()
		return len(c.refresher.hot[listA]) == 0
	})
}

// awaitRefreshes returns when all queued tasks have ended. It gives each worker a task that
// waits for the other workers.
func awaitRefreshes(c *Cache) {
	var workers sync.WaitGroup
	workers.Add(refreshWorkers)
	for range refreshWorkers {
		c.refresher.tasks <- func() { workers.Done(); workers.Wait() }
	}
	workers.Wait()
}

// A change of a row that a hot page does not show costs no query, and the page stays a
// hit. A page without an extent is read again.
func TestOnlyPagesThatAChangeConcernsAreRefreshed(t *testing.T) {
	b := startFollower(t)
	c, _ := b.open(Options{TTL: time.Minute, MaxStale: time.Minute, Bound: patient})
	eventually(t, "trusted", mode(c, ModeFollowed))
	shown, other := uuid.UUID{1}, uuid.UUID{2}
	var queries atomic.Int64
	read := b.brings("page").Primary
	var extent atomic.Pointer[freshness.Extent]
	fill := counted(&queries, Fill{Primary: func(ctx context.Context, run string) (FillResult, error) {
		f, err := read(ctx, run)
		f.Extent = extent.Load()
		return f, err
	}})
	hit := func() (hit bool) { _, hit = request(t, c, fill); return hit }
	extent.Store(&freshness.Extent{Tags: []uint32{freshness.Tag(shown)}, After: freshness.Bound{Kind: freshness.Open}, End: freshness.Bound{Kind: freshness.Open}})
	makeHot(t, b, c, fill)
	eventually(t, "a hit on a page with its extent", func() bool {
		return hit() && c.memory.get(keyOf("q")).entry.Load().Extent != nil
	})
	proof := c.tracker.Stats().Proof
	eventually(t, "a later proof: all earlier changes have been applied", func() bool { return c.tracker.Stats().Proof > proof })
	awaitRefreshes(c)
	before, refreshes := queries.Load(), c.Stats().Refreshes
	for range 20 {
		changes := c.Stats().Changes
		b.changeRows(listA, lists.Row{ID: other, Flags: lists.Gone})
		eventually(t, "it is applied", func() bool { return c.Stats().Changes > changes })
		if !hit() {
			t.Error("no hit after a change of a row that the page does not show")
		}
	}
	if n, m := queries.Load()-before, c.Stats().Refreshes-refreshes; n != 0 || m != 0 {
		t.Errorf("%d queries, %d refreshes", n, m)
	}
	extent.Store(nil)
	b.changeRows(listA, lists.Row{ID: shown})
	eventually(t, "it is read ahead", func() bool { return queries.Load() > before && c.memory.get(keyOf("q")).entry.Load().Extent == nil })
	eventually(t, "a hit", hit)
	before = queries.Load()
	b.changeRows(listA, lists.Row{ID: other, Flags: lists.Gone})
	eventually(t, "without its extent it is read again", func() bool { return queries.Load() > before })
}

func TestAnEntryThatIsNotHotIsNotRefreshed(t *testing.T) {
	b, c := followed(t, Options{})
	var queries atomic.Int64
	fill := counted(&queries, b.brings("page"))
	for range 3 {
		request(t, c, fill)
		c.memory.get(keyOf("q")).countedFrom.Add(-int64(2 * time.Second / hotRate)) // as if it was that long ago
		b.change(listA)
	}
	before := b.applied.Load()
	eventually(t, "all is applied", func() bool { return b.applied.Load() > before })
	if n := c.Stats().Refreshes; n != 0 {
		t.Errorf("refreshed %d times", n)
	}
}

// A change may be published before it is visible. The entry is read until it shows the change.
func TestAHotEntryIsRetriedUntilItsChangeIsVisible(t *testing.T) {
	_, client := startRedis(t)
	b, c := followed(t, Options{Redis: client})
	var queries, early atomic.Int64
	fill := b.brings("page")
	fill.Primary = func(ctx context.Context, run string) (FillResult, error) {
		queries.Add(1)
		f, err := b.brings("page").Primary(ctx, run)
		if early.Add(-1) >= 0 { // the last transaction is not visible yet
			var xmax uint64
			_, _ = fmt.Sscanf(f.Snapshot, "%d:", &xmax)
			f.Snapshot = fmt.Sprintf("%d:%d:%d", xmax-1, xmax, xmax-1)
		}
		return f, err
	}
	b.holdBack(true)
	makeHot(t, b, c, fill)
	b.holdBack(false)
	eventually(t, "a hit", func() bool { _, hit := request(t, c, fill); return hit })
	b.holdBack(true)
	before := queries.Load()
	early.Store(3)
	b.change(listA)
	eventually(t, "an admitted entry", func() bool { return early.Load() < 0 && c.memory.get(keyOf("q")).entry.Load().Admitted() })
	if n := queries.Load() - before; n != 4 {
		t.Errorf("%d queries, of which 3 were too early", n)
	}
}

// Refreshes are bounded. Pages beyond the bound are read when they are requested, and
// nothing waits.
func TestRefreshingIsBounded(t *testing.T) {
	b, c := followed(t, Options{})
	release := make(chan struct{})
	fast := b.brings("page")
	var slow atomic.Bool
	var running, most atomic.Int64
	fill := Fill{Primary: func(ctx context.Context, run string) (FillResult, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		if slow.Load() {
			<-release
		}
		return fast.Primary(ctx, "")
	}}
	const workspaces = refreshQueue + 3*refreshWorkers
	list := func(i int) changefeed.List {
		return changefeed.List{Workspace: [16]byte{9, byte(i), byte(i >> 8)}, Collection: lists.Items}
	}
	for i := range workspaces {
		key := keyOf(fmt.Sprint(i))
		if _, err := c.Forward(key, list(i), fill); err != nil {
			t.Fatal(err)
		}
		h := c.memory.get(key)
		c.refresher.add(&hotEntry{slot: weak.Make(h), list: list(i), fill: fill})
	}
	slow.Store(true)
	most.Store(0)
	var all []changefeed.List
	for i := range workspaces {
		c.memory.get(keyOf(fmt.Sprint(i))).requests.Add(1000)
		all = append(all, list(i))
	}
	b.change(all...)
	eventually(t, "some are dropped", func() bool { return c.Stats().RefreshesDropped > 0 })
	eventually(t, "all workers at work", func() bool { return running.Load() == refreshWorkers })
	var wg sync.WaitGroup
	wg.Go(func() { request(t, c, b.brings("another")) }) // requests do not wait for refreshes
	wg.Wait()
	close(release)
	eventually(t, "idle", func() bool { return len(c.refresher.tasks) == 0 && running.Load() == 0 })
	if n := most.Load(); n > refreshWorkers {
		t.Errorf("%d queries at once", n)
	}
}

// If a change stays invisible for long (its commit waits for a synchronous standby), one
// refresher retries the page. Requests start no further retries.
func TestRetryingEnds(t *testing.T) {
	b, c := followed(t, Options{})
	var queries atomic.Int64
	var early atomic.Bool
	sees := b.brings("page")
	fill := Fill{Primary: func(ctx context.Context, run string) (FillResult, error) {
		if early.Load() {
			queries.Add(1)
			return FillResult{Body: []byte("old"), Snapshot: "100:100:"}, nil
		}
		return sees.Primary(ctx, run)
	}}
	makeHot(t, b, c, fill)
	eventually(t, "a hit", func() bool { _, hit := request(t, c, fill); return hit })
	b.holdBack(true)
	early.Store(true)
	before := b.applied.Load()
	b.change(listA)
	eventually(t, "the change is known", func() bool { return b.applied.Load() > before })
	h := c.memory.get(keyOf("q"))
	const readers = 4
	for range readers {
		h.requests.Add(1 << 20)
		before := queries.Load()
		eventually(t, "too old to be shared", func() bool { return c.clock.Now()-h.entry.Load().Proof >= c.tracker.ShareTime() })
		eventually(t, "a query", func() bool { request(t, c, fill); return queries.Load() > before })
		awaitRefreshes(c)
	}
	// Beside those of requests: one to refresh it, and one series of retries.
	if n, most := queries.Load(), int64(readers+1+len(visibilityWaits)); n > most {
		t.Errorf("%d queries for %d readers, more than %d", n, readers, most)
	}
}

// A query is counted for the key of the request that began the fill. If several requests
// share the fill, that is the first. A prefetched page counts for the request that caused
// the prefetch. Refreshes count for no key.
func TestQueriesAreCountedForTheRequestThatCausedThem(t *testing.T) {
	b, c := followed(t, Options{})
	var queries, caused atomic.Int64
	page := b.brings("page")
	fill := counted(&queries, Fill{Primary: func(ctx context.Context, run string) (FillResult, error) {
		r, err := page.Primary(ctx, run)
		r.Query.Began = time.Now()
		return r, err
	}})
	fill.Queried = func() { caused.Add(1) }

	c.PrefetchNext(keyOf("2"), listA, fill)
	eventually(t, "the page is read ahead", func() bool { return c.memory.get(keyOf("2")) != nil })
	if queries.Load() != 1 || caused.Load() != 1 {
		t.Errorf("%d queries, %d counted", queries.Load(), caused.Load())
	}
	makeHot(t, b, c, fill)
	eventually(t, "a hit", func() bool { _, hit := request(t, c, fill); return hit })
	awaitRefreshes(c)
	before, counted := queries.Load(), caused.Load()
	b.change(listA)
	eventually(t, "a refresh", func() bool { return queries.Load() > before })
	awaitRefreshes(c)
	if caused.Load() != counted {
		t.Errorf("%d queries of refreshes are counted", caused.Load()-counted)
	}

	failing := Fill{Queried: fill.Queried, Primary: func(context.Context, string) (FillResult, error) {
		return FillResult{}, errPanic // refused before it reached Postgres
	}}
	if _, err := c.Forward(keyOf("3"), listA, failing); err == nil || caused.Load() != counted {
		t.Errorf("%v, %d counted without a query", err, caused.Load()-counted)
	}
}

func TestTheNextPageIsPrefetched(t *testing.T) {
	b, following := followed(t, Options{})
	for name, by := range map[string]struct {
		cache *Cache
		fill  Fill
	}{"followed": {following, b.brings("next")}, "by age": {open(t, Options{TTL: time.Hour}), brings("next")}} {
		var queries atomic.Int64
		fill := counted(&queries, by.fill)
		by.cache.PrefetchNext(keyOf("2"), listA, fill)
		eventually(t, name+": it is in memory", func() bool { return by.cache.memory.get(keyOf("2")) != nil })
		by.cache.refresher.prefetch(keyOf("2"), listA, fill) // an entry in memory is not read again
		r, err := by.cache.Forward(keyOf("2"), listA, fails(errPanic))
		if err != nil || string(r.Entry.Body) != "next" || r.Source != Memory {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if s := by.cache.Stats(); s.NextPages != 1 || queries.Load() != 1 {
			t.Errorf("%s: %d pages by %d queries", name, s.NextPages, queries.Load())
		}
	}
}

// Of several concurrent requests for a page, one prefetches the next page.
func TestTheNextPageIsClaimedOnce(t *testing.T) {
	p, last := newEntryAt([]byte("x"), "next", time.Now()), newEntryAt([]byte("x"), "", time.Now())
	if !p.ClaimNextPrefetch() || p.ClaimNextPrefetch() || last.ClaimNextPrefetch() {
		t.Error("the next page is claimed more than once, or never, or there is none")
	}
}

// A client that walks joins the flight that prefetches its page. If the page is late, the
// request does not query the database a second time.
func TestARequestJoinsThePrefetch(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	var queries atomic.Int64
	began, release := make(chan struct{}), make(chan struct{})
	c.PrefetchNext(keyOf("2"), listA, counted(&queries, Fill{Primary: func(context.Context, string) (FillResult, error) {
		close(began)
		<-release
		return FillResult{Body: []byte("next")}, nil
	}}))
	<-began
	answer := make(chan Result)
	go func() {
		r, _ := c.Forward(keyOf("2"), listA, counted(&queries, brings("another")))
		answer <- r
	}()
	close(release)
	if r := <-answer; string(r.Entry.Body) != "next" || queries.Load() != 1 {
		t.Errorf("%q by %d queries", r.Entry.Body, queries.Load())
	}
}

// A page that is being read, or is in memory, is not prefetched.
func TestAnEntryUnderWayIsNotPrefetched(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	forward(t, c, keyOf("there"), brings("page"))
	began, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	for i := range refreshWorkers {
		c.PrefetchNext(keyOf(fmt.Sprint(i)), listA, Fill{Primary: func(context.Context, string) (FillResult, error) {
			began <- struct{}{}
			<-release
			return FillResult{}, nil
		}})
		<-began
	}
	c.PrefetchNext(keyOf("there"), listA, fails(errPanic))
	c.PrefetchNext(keyOf("0"), listA, fails(errPanic))
	if n := len(c.refresher.tasks); n != 0 { // all workers are busy
		t.Errorf("%d wait", n)
	}
	c.PrefetchNext(keyOf("another"), listA, fails(errPanic))
	if n := len(c.refresher.tasks); n != 1 {
		t.Errorf("%d wait, one is to", n)
	}
}

// Prefetches use at most half of the queue, so refreshes have the other half. Nothing waits.
func TestPrefetchesLeaveHalfOfTheQueue(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	release := make(chan struct{})
	defer close(release)
	held := Fill{Primary: func(ctx context.Context, _ string) (FillResult, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return FillResult{}, ctx.Err()
	}}
	for i := range 4 * refreshQueue {
		c.PrefetchNext(keyOf(fmt.Sprint(i)), listA, held)
	}
	if n, dropped := len(c.refresher.tasks), c.Stats().NextPagesDropped; n > refreshQueue/2 || dropped < 3*refreshQueue {
		t.Errorf("%d wait, %d were dropped", n, dropped)
	}
}

// A failed prefetch has no effect on later requests for the page.
func TestAFailedPrefetchIsForgotten(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	c.PrefetchNext(keyOf("2"), listA, fails(errPanic))
	eventually(t, "it failed", func() bool { return c.Stats().FillErrors == 1 })
	r, err := c.Forward(keyOf("2"), listA, brings("page"))
	if err != nil || string(r.Entry.Body) != "page" || r.Err != nil {
		t.Errorf("%+v %v", r, err)
	}
}
