// Package cache answers list requests from memory: it keeps rows, and applies every commit
// to them (package cache/replica), so that a page which the rows cover equals the database
// without a query.
//
//	Hit ──► entry ── current ─────────────────────────────────────► response
//	          │ its list has changed since
//	          ▼
//	        replica ── covers the page ──► cut ──► entry ─────────► response
//	Forward   │ rows are missing
//	          ▼  one flight per key and node; all other requests wait for it
//	        redis ── rows that another node read ──┐
//	          │ none                               ▼
//	          ▼                                  merge ──► cut ───► response
//	        fill ── rows of a statement ───────────┘
//	          │ failed
//	          ▼
//	        the newest stale entry, marked; else the error
//
//	log ──► Beat ──► replica: at each heartbeat all rows move to the next snapshot
//
// Where changes are followed, a hit omits no commit older than Options.Bound: a heartbeat proves
// that the rows have all changes, and pages are cut from them only while the last proof is young.
// An entry is a finished page, in ristretto. A flight is a look-up that requests for a key share.
package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
	"golang.org/x/sync/singleflight"

	"listedge/cache/replica"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

var (
	errPaused = errors.New("the last fill failed moments ago")
	errClosed = fmt.Errorf("cache closed: %w", context.Canceled)
	errPanic  = errors.New("panic in a fill")
)

// Cache has the pages of one node, in memory and in Redis, and one flight per key to find them.
type Cache struct {
	options   Options
	clock     *boottime.Clock
	memory    *memory
	redis     *redisTier         // nil = none
	flights   singleflight.Group // running look-ups, by the page's key; see lookup.await
	replica   *replica.Replica
	followed  following
	beats     signal      // is raised after each heartbeat
	room      Room        // of pages for clients that track a list
	following atomic.Bool // changes, and not the age of entries, decide what is fresh

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	mu      sync.Mutex // guards closed, and orders enter's running.Add before Close's Wait
	closed  bool
	running sync.WaitGroup // calls, flights, and asynchronous calls to Redis

	fills, fillErrors, cuts, proven, wrongServers atomic.Uint64
}

const (
	// staleWait is how long a request that could be served a stale entry waits for
	// a fresh one. Before, it may have waited for its API key: staleBy is when it has the stale entry.
	staleWait = 800 * time.Millisecond
	staleBy   = time.Second
	// fillPause is how long a stale entry is served at once after its fill failed or
	// took longer than staleWait. Then a request waits for a fill again.
	fillPause = time.Second
	// rememberedBytes bounds the changes that are kept, to apply them to rows read before.
	rememberedBytes = 16 << 20
	// parkedBytes bounds the rows that wait for a heartbeat to show all that they show.
	parkedBytes = 16 << 20
	// maxLists bounds the lists (orders, filters, searches) of a table: a change visits all.
	maxLists = 256
)

// storeInterval is how often a page that is served is stored again. The changes of its list
// are remembered for some minutes, so only a young copy can be brought up to date by a node
// that starts.
const storeInterval = 2 * time.Minute

// New makes an empty cache. It waits up to redisTimeout for a connection to Redis, so
// that the first request finds one open. Without a connection it returns all the same.
func New(o Options) (*Cache, error) {
	m, err := newMemory(o.Memory)
	if err != nil {
		return nil, err
	}
	c := &Cache{options: o, clock: o.Clock, memory: m, room: cmp.Or(o.Room, Room{page.MaxBytes, page.MaxGone, page.MaxGoneBytes}),
		replica: replica.New(o.budgets(int(rowsBudget(m.budget))))}
	c.followed.known.Store(&known{})
	c.followed.bound = cmp.Or(o.Bound, 400*time.Millisecond)
	c.ctx, c.stop = context.WithCancel(context.Background())
	if o.Redis != nil {
		c.redis = newRedisTier(c)
	}
	c.SetTTLMode(false)
	return c, nil
}

// Close waits for flights and stores until ctx ends, and then cuts them off. Hit
// must not be called meanwhile or afterwards: the server ends its requests first.
func (c *Cache) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	done := make(chan struct{})
	go func() { c.running.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("close the cache: %w", ctx.Err())
	}
	c.stop()
	<-done
	c.memory.close()
	return err
}

// HasRedis reports whether there is a second tier.
func (c *Cache) HasRedis() bool { return c.redis != nil }

// enter counts a call that Close waits for; false once Close was called.
func (c *Cache) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// Hit returns the query's entry if it is fresh in memory, or cuts it from rows there. It does not keep the query, and allocates
// nothing unless the page is another one than before. From time to time it stores the page in Redis as it is now.
func (c *Cache) Hit(q *page.Query, now time.Time) (Result, bool) {
	s, at := c.memory.get(q), c.clock.At(now)
	e := c.fresh(q, s, at)
	if e == nil {
		return Result{}, false
	}
	if s != nil && c.redis != nil && int64(at) >= s.storeAfter.Load() && c.following.Load() {
		s.storeAfter.Store(int64(at + storeInterval))
		c.storeState(e.query, e.listKey())
	}
	return c.memoryResult(e, at), true
}

// fresh returns an entry of the page that is fresh: the slot's, or one cut from the replica, which memory then has; nil = none.
// Without a slot, memory has no page. It does not keep the query.
func (c *Cache) fresh(q *page.Query, s *slot, now time.Duration) *Entry {
	trusted := c.following.Load() && c.followed.trusted(now)
	if s == nil {
		if !trusted {
			return nil
		}
		own := q.Clone()
		cut := c.cut(&own, listOf(&own), nil, now)
		if cut != nil {
			c.memory.put(cut, c.life())
		}
		return cut
	}
	e := s.entry.Load()
	if trusted && e.isCurrent() {
		e.part.Touch()
		return e
	}
	if trusted && !(e.isPending() && c.judge(e, now) == fresh) { // such a one may show more than the rows
		if cut := c.cut(e.query, e.listKey(), e, now); cut != nil {
			if cut != e {
				c.memory.replace(s, cut, c.life())
			}
			return cut
		}
	}
	if c.judge(e, now) == fresh {
		return e
	}
	return nil
}

// cut makes the page's entry out of the replica, or returns old if that shows the same rows. It returns nil if the replica does
// not have all of them, or while nothing is proven. It allocates nothing if it returns old.
func (c *Cache) cut(q *page.Query, of replica.Key, old *Entry, now time.Duration) *Entry {
	if !c.followed.trusted(now) {
		return nil
	}
	proof := time.Duration(c.followed.proof.Load()) // the rows show all that it proves, or more
	var space [page.MaxLimit]*list.Row
	p, rows, ok := c.replica.Read(space[:0], &of, q.After, q.Limit, page.MaxBytes)
	if !ok {
		return nil
	}
	if old != nil && old.shows(&p, rows) {
		old.version.Store(p.Version)
		return old
	}
	c.cuts.Add(1)
	texts, last := make([]string, len(rows)), (*list.Row)(nil)
	for i, r := range rows {
		texts[i], last = r.Text(), r
	}
	e := newEntry(q, texts, last, p.More, old)
	e.list, e.part, e.last = p.List, p.Last, last
	e.version.Store(p.Version)
	e.Proof, e.ReadAt = proof, proof
	return e
}

// Forward finds the entry of a query that Hit did not have, for a request that began then. It does not keep the query. It calls
// queried after each statement, which may be after it has returned. The error is the origin's own,
// or ErrFillTimeout.
func (c *Cache) Forward(q *page.Query, began time.Time, queried func()) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	s := c.memory.get(q)
	r, ok := c.fallback(s)
	if ok {
		return r, nil
	}
	missed, old, wait := c.missed(s), r.Entry, c.options.FillTimeout+redisBudget
	if old != nil && c.remaining(old) > staleWait {
		wait = min(wait, staleWait, max(0, staleBy-time.Since(began)))
	}
	l, arrived := newLookup(c, q, queried), c.clock.Now()
	r, err := l.await("", old, wait, l.find, func(e *Entry) bool { return e.ReadAt < arrived && c.judge(e, c.clock.Now()) != fresh })
	if r.Source != Memory || r.Err != nil { // else the rows had it, or another request found it
		r.Missed = missed
	}
	return r, err
}

// missed returns Result.Missed: why the slot's entry, or a missing slot, is no hit.
func (c *Cache) missed(s *slot) string {
	switch {
	case c.following.Load() && !c.followed.trusted(c.clock.Now()):
		return "unproven"
	case s == nil:
		return "not-held"
	}
	return "stale" // by its age, or because the replica has not all of its rows any more
}

// A request with Cache-Control: no-cache gets what was visible when it arrived, by Proven, else by Bypass. The moment of a
// proof, the beginning of a statement and the arrival are of the node's one clock.

// Proven returns the query's page from the rows that memory has, once a proof says that they show all that was visible
// when it was called: that takes some heartbeats, and at most shareTime. ok is false if none comes in time, and at once if
// memory does not have the page. It reads nothing.
func (c *Cache) Proven(q *page.Query) (r Result, ok bool) {
	if !c.enter() {
		return Result{}, false
	}
	defer c.running.Done()
	arrived, timer := c.clock.Now(), time.NewTimer(c.followed.shareTime())
	defer timer.Stop()
	for {
		beat, now := c.beats.next(), c.clock.Now()
		e := c.held(q, now)
		switch {
		case e == nil:
			return Result{}, false
		case c.equalled(e) >= arrived:
			c.proven.Add(1)
			return c.memoryResult(e, now), true
		case !c.awaitBeat(beat, timer.C):
			return Result{}, false
		}
	}
}

// held returns the page as the replica has it, or a statement that saw more; nil = neither has it, or nothing is proven.
func (c *Cache) held(q *page.Query, now time.Duration) *Entry {
	if !c.following.Load() || !c.followed.trusted(now) {
		return nil
	}
	e := c.fresh(q, c.memory.get(q), now)
	if e != nil && (e.list != nil || c.isAhead(e)) {
		return e
	}
	return nil
}

// awaitBeat waits for the next heartbeat, which it asks for; false = the timer has fired, or the cache ends.
func (c *Cache) awaitBeat(beat <-chan struct{}, timer <-chan time.Time) bool {
	if c.options.Hurry != nil && c.beats.ask() {
		c.running.Go(func() { c.options.Hurry(c.ctx) })
	}
	select {
	case <-beat:
		return true
	case <-timer:
	case <-c.ctx.Done():
	}
	return false
}

// Bypass returns the query's page by a statement on the primary that begins after the call, or later: from the rows that
// were merged with what it read. Calls share a statement that begins after all of them.
func (c *Cache) Bypass(q *page.Query, queried func()) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	l, arrived := newLookup(c, q, queried), c.clock.Now()
	l.standbys = false
	// The flight is another one than that of Forward, which the tiers may answer.
	r, err := l.await(" bypass", nil, c.options.FillTimeout, l.fillAnew, func(e *Entry) bool { return e.Proof < arrived })
	r.Bypassed = true
	return r, err
}

// Stored returns the query's entry if memory or Redis has a fresh one, else ErrNotStored.
// It never reads from the origin.
func (c *Cache) Stored(q *page.Query) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	l := newLookup(c, q, nil)
	look := func() (Result, error) {
		if r, ok := l.findStored(); ok {
			return r, nil
		}
		return Result{}, ErrNotStored
	}
	return l.await(" stored", nil, c.options.FillTimeout, look, func(e *Entry) bool { return c.judge(e, c.clock.Now()) != fresh })
}

// fallback returns what is served if a fill fails, the slot's entry, or nothing. ok is true if it is served at once: it is
// fresh by now, or fills of it are paused.
func (c *Cache) fallback(s *slot) (r Result, ok bool) {
	if s == nil {
		return Result{}, false
	}
	e, now := s.entry.Load(), c.clock.Now()
	switch c.judge(e, now) {
	case fresh:
		return c.memoryResult(e, now), true
	case expired:
		return Result{}, false
	}
	r = c.memoryResult(e, now)
	r.HadStale, r.Err = true, errPaused
	return r, int64(now) < s.pausedUntil.Load()
}

// memoryResult is the result for an entry that was found in memory.
func (c *Cache) memoryResult(e *Entry, now time.Duration) Result {
	return Result{Entry: e, Age: c.age(e, now), Source: Memory, ByTTL: !c.following.Load()}
}

// serveStale returns the stale entry as the result, with err as the reason. It returns
// err itself if there is no stale entry or the entry has expired.
func (c *Cache) serveStale(e *Entry, err error) (Result, error) {
	now := c.clock.Now()
	if e == nil || c.judge(e, now) == expired {
		return Result{}, err
	}
	return Result{Entry: e, Age: c.age(e, now), HadStale: true, Err: err}, nil
}

// pause pauses fills of the slot's entry for fillPause: requests get the stale entry at
// once.
func (c *Cache) pause(s *slot) { s.pausedUntil.Store(int64(c.clock.Now() + fillPause)) }

// freshness says how an entry may be served.
type freshness uint8

// In the order in which an entry has them as it ages.
const (
	fresh   freshness = iota // serve it
	stale                    // read from the origin; if that fails, serve it marked as stale
	expired                  // never serve it
)

// judge says how the entry may be served. It is fresh by rule 1 if the replica's state is proven
// and the entry equals it or is ahead of it; by rule 2, for shareTime (a quarter of the bound)
// after it was read, while there is no proof or the replica lacks the page. Without changes to
// follow, the age decides.
func (c *Cache) judge(e *Entry, now time.Duration) freshness {
	age, ttl := c.age(e, now), c.options.TTL
	if c.following.Load() {
		trusted := c.followed.trusted(now)
		if trusted && (e.isCurrent() || c.isAhead(e)) || (!trusted || e.list == nil) && now-e.Proof < c.followed.shareTime() {
			return fresh
		}
		ttl = 0
	}
	switch {
	case age < ttl:
		return fresh
	case age < c.life():
		return stale
	}
	return expired
}

// isAhead reports whether the entry shows all that the last proof does, and more. A statement on the primary that the
// replica's snapshot does not cover came after that snapshot. A standby had replayed all that the proof's LSN names; the
// next proof may name more. Who relies on the proof has looked at trusted before: so this proof is no older.
func (c *Cache) isAhead(e *Entry) bool {
	return e.isPending() && (e.fill.At.Timeline == "" || e.fill.At.LSN >= c.followed.known.Load().last.LSN)
}

// equalled is the latest moment at which the entry is known to have equalled the database, or a later state.
func (c *Cache) equalled(e *Entry) time.Duration {
	proof := time.Duration(c.followed.proof.Load()) // before the look at the entry: a heartbeat may come in between
	if c.following.Load() && (e.isCurrent() || c.isAhead(e)) {
		return max(e.Proof, proof)
	}
	return e.Proof
}

// age is how long ago the entry was last known to equal the database.
func (c *Cache) age(e *Entry, now time.Duration) time.Duration { return max(0, now-c.equalled(e)) }

// life is how long an entry may be served, fresh or stale, after it equalled the database.
func (c *Cache) life() time.Duration { return c.options.TTL + c.options.MaxStale }

// remaining is how much of its life an entry has left.
func (c *Cache) remaining(e *Entry) time.Duration {
	return max(c.life()-(c.clock.Now()-e.Proof), time.Millisecond)
}

// storeState stores a page of the replica in Redis, unless a heartbeat comes in between. It
// reports whether it does.
func (c *Cache) storeState(q *page.Query, of replica.Key) bool {
	readAt := time.Duration(c.followed.proof.Load())
	at := c.replica.Begin().At
	cut, rows, whole := c.replica.Read(nil, &of, q.After, q.Limit+1, page.MaxBytes)
	if !whole && len(rows) <= q.Limit || c.replica.Begin().At.Began != at.Began {
		return false
	}
	p := reading{Read: page.Read{End: whole && !cut.More, At: at}, epoch: c.followed.known.Load().epoch, readAt: readAt}
	for _, r := range rows {
		p.Rows = append(p.Rows, *r)
	}
	c.redis.store(q, p)
	return true
}

// Verify has the replica compare a page that it holds with what the primary returns. While changes are not followed, or the last
// proof is too old, and while the primary has other work, it does nothing.
func (c *Cache) Verify(ctx context.Context) {
	if c.Mode() != ModeFollowed || !c.enter() {
		return
	}
	defer c.running.Done()
	k, after, ok := c.replica.Pick()
	q := page.Query{List: k.Table.List, Tenant: k.Table.Tenant, Order: k.Order, Match: k.Match, Search: k.Search, After: after, Limit: page.MaxLimit}
	if !ok || listOf(&q) != k {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.FillTimeout)
	defer cancel()
	start := c.replica.Begin()
	read, err := protect(func() (page.Read, error) { return c.options.Origin.Verify(ctx, q, c.PrimaryStart()) })
	if err != nil {
		return
	}
	read.At.Began = start.At.Began
	c.replica.Merge(&replica.Fill{Key: k, After: after, Read: read, Start: start, Verifies: true})
}

// Probe calls Redis if the breaker is half-open or no call has succeeded yet. It is to be called
// regularly: a cache that has all entries in memory would else never find out that Redis is
// available again.
func (c *Cache) Probe(context.Context) {
	r := c.redis
	if r != nil && (r.breaker.State() == gobreaker.StateHalfOpen || !r.answered.Load()) {
		_, _ = callRedis(r, r.budget, r.tryRead)
	}
}

// Cache implements changefeed.Listener, by which it learns of changes in the database. The
// methods must not be called once a call to Close has begun.
var _ changefeed.Listener = (*Cache)(nil)

// Reset implements changefeed.Listener: no row is current any more, and nothing is proven.
func (c *Cache) Reset(epoch string, _ changefeed.ResetCause) {
	c.followed.trustedUntil.Store(0)
	c.followed.known.Store(&known{epoch: epoch})
	c.replica.Reset(epoch)
}

// Beat implements changefeed.Listener: the replica moves to the heartbeat's snapshot, and then
// is proven by it.
func (c *Cache) Beat(b changefeed.Beat) {
	if c.replica.Apply(&b) {
		c.memory.dropOutdated()
	}
	f := &c.followed
	defer c.beats.raise()
	if m := c.replica.Mismatch(); m != nil {
		c.options.Mismatched(*m)
	}
	known := *f.known.Load()
	for _, change := range b.Settled {
		if change.CommittedAt != 0 && known.last.StartedAt != "" { // before the first proof, a change may have been in the log for long
			c.options.CommitApplied(max(0, time.Since(time.UnixMicro(change.CommittedAt)))) // only this compares the node's clock with Postgres'
		}
	}
	if b.Moment.IsZero() {
		return
	}
	known.last = b.Proof
	f.known.Store(&known)
	f.proof.Store(max(f.proof.Load(), int64(c.clock.Of(b.Moment))))
	f.trustedUntil.Store(f.proof.Load() + int64(f.bound))
}

// Mode returns the current mode.
func (c *Cache) Mode() Mode {
	switch {
	case !c.following.Load():
		return ModeTTL
	case c.followed.trusted(c.clock.Now()):
		return ModeFollowed
	}
	return ModeUntrusted
}

// SetTTLMode says whether pages are judged by their age, because changes cannot be
// followed. Without a freshness bound they always are. The memory is then for finished
// pages alone: the replica gives up its rows.
func (c *Cache) SetTTLMode(on bool) {
	c.following.Store(!on && c.options.Bound > 0)
	if on {
		c.replica.Reset(c.followed.known.Load().epoch)
	}
	c.memory.setShare(c.following.Load())
}

// PrimaryStart returns when the primary of the last proof was started, by its own clock;
// empty = no proof is young enough.
func (c *Cache) PrimaryStart() string {
	if c.Mode() != ModeFollowed {
		return ""
	}
	return c.followed.known.Load().last.StartedAt // loaded after Mode, so never older than the proof that Mode saw
}

// ProofAge returns the time since the moment of the last proof: all changes before it are applied.
func (c *Cache) ProofAge() time.Duration {
	return c.clock.Now() - time.Duration(c.followed.proof.Load())
}

// Checkpoint returns when tables last changed, for nodes that begin to read the log; nil = nothing is known.
func (c *Cache) Checkpoint() *changefeed.Checkpoint { return c.replica.Checkpoint() }

// Stats returns the counts since the start and the current state.
func (c *Cache) Stats() Stats {
	s := Stats{
		Fills: c.fills.Load(), FillErrors: c.fillErrors.Load(),
		Evicted: c.memory.evicted.Load(), MemoryBytes: c.memory.used(), MemoryBudget: c.options.Memory,
		Mode: c.Mode(), Bound: c.options.Bound, Cut: c.cuts.Load(), Proven: c.proven.Load(), Replica: c.replica.Stats(),
	}
	s.MemoryBytes += int64(s.Replica.Bytes + s.Replica.IDBytes)
	if r := c.redis; r != nil {
		s.RedisCalls, s.RedisFailures = r.calls.Load(), r.failures.Load()
		s.RedisCorrupt, s.RedisDropped = r.corrupt.Load(), r.dropped.Load()
		s.RedisBreakerOpen, s.RedisFailure = r.breaker.State() != gobreaker.StateClosed, r.failure()
	}
	if c.options.Bound > 0 {
		s.ProofAge = c.ProofAge()
	}
	s.Replica.Fills[replica.WrongServer] += c.wrongServers.Load()
	return s
}
