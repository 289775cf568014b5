package cache

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

// Source says where an entry was found.
type Source uint8

const (
	Memory Source = iota
	Redis
	Origin
)

func (s Source) String() string { return [...]string{"memory", "redis", "origin"}[s] }

// Result is an entry and how it was found.
type Result struct {
	Entry     *Entry
	Age       time.Duration // since the entry was last known to equal the database
	Source    Source
	HadStale  bool   // there was an entry, but it was stale
	Bypassed  bool   // it was read for the request although memory might have it
	ByTTL     bool   // changes are not followed: the entry is fresh by its age alone
	Collapsed bool   // another request's flight found the entry
	Missed    string // why the page was not in memory; empty = it was
	Err       error  // why a stale entry is served; nil for a fresh one

	Times *Times // what the flight spent, also if it failed; nil = there was no flight
}

// Span is a period of time; zero = there was none.
type Span struct {
	Began time.Time
	Took  time.Duration
}

// spanSince returns the span from then until now.
func spanSince(began time.Time) Span { return Span{began, time.Since(began)} }

// Times are how long the parts of a flight took. All requests of the flight share
// them, and nothing changes them afterwards.
type Times struct {
	Redis Span // calls to Redis, and waiting for an entry that another node fills
	Fill  Span // reading from the origin, including the wait in the fair queue
	Query Span // the query, which is a part of Fill
}

// following is what a node knows of the database that it follows: up to which moment the
// replica has all changes, and of which primary.
//
// Invariant: every commit that was visible before trustedUntil − bound has been applied to
// the replica.
type following struct {
	bound time.Duration // how long a proof is trusted

	trustedUntil atomic.Int64 // the moment at which the last proof becomes too old
	proof        atomic.Int64 // the moment of the last proof

	known atomic.Pointer[known]
}

// known is the log's epoch and the last proof, replaced together.
type known struct {
	epoch string           // of the log
	last  changefeed.Proof // the last proof since the last reset; zero = none
}

// trusted reports whether the last proof is young enough: every change that was visible
// bound ago has been applied.
func (f *following) trusted(now time.Duration) bool { return int64(now) < f.trustedUntil.Load() }

// shareFactor: an answer that was read less than bound/shareFactor ago may be shared.
const shareFactor = 4

// shareTime is how long the answer to one query may be shared by all requests. It omits only
// commits that are younger than this.
func (f *following) shareTime() time.Duration { return f.bound / shareFactor }

// signal wakes all who wait.
type signal struct {
	mu     sync.Mutex
	raised chan struct{} // nil = nobody waits
	asked  bool          // one of those who wait has asked for it
}

// next returns what is closed when the signal is raised next.
func (s *signal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raised == nil {
		s.raised = make(chan struct{})
	}
	return s.raised
}

// ask reports whether the caller, who waits, is the first to ask for the signal.
func (s *signal) ask() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = s.raised != nil && !s.asked
	s.asked = s.raised != nil
	return first
}

func (s *signal) raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raised != nil {
		close(s.raised)
		s.raised, s.asked = nil, false
	}
}

// protect turns a panic of call into an error. In a goroutine without a recover a panic
// would end the process.
func protect[T any](call func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return call()
}

// lookup is one flight: it finds an entry that is not fresh in memory, in the replica or in
// Redis, or makes it by a fill.
//
// Invariants: a fill has its own deadline, whatever request began it; where changes
// are followed, only rows with a known read point go to Redis; the answer of a wrong server
// is not served, and that of a standby that lags only once all changes are applied to it.
type lookup struct {
	*Cache
	query    *page.Query // with memory of its own, because a flight may outlive its requests
	list     replica.Key // that the page is a part of
	key      []byte      // of the page in Redis
	queried  func()      // is called after each statement
	standbys bool        // may be asked

	old   *Entry // the newest stale entry so far, which may be served if the fill fails; nil = none
	began time.Time

	claimed bool // in Redis this node has claimed the fill
	stored  bool // what was read is on its way to Redis

	redisErr error // of the last call to Redis for the entry; after an error there is no further call
}

func newLookup(c *Cache, q *page.Query, queried func()) *lookup {
	own := q.Clone()
	return &lookup{Cache: c, query: &own, list: listOf(&own), key: own.AppendKey(nil), queried: queried, standbys: c.options.Origin.HasStandbys()}
}

// listOf names the list that a query's page is a part of.
func listOf(q *page.Query) replica.Key {
	return replica.Key{Table: changefeed.Table{List: q.List, Tenant: q.Tenant}, Order: q.Order, Match: q.Match, Search: list.Fold(q.Search)}
}

// await waits for the result of the flight of that kind for the page. Of concurrent requests the first
// runs the look-up, and the others get the same result. One of them looks again if the result
// of a slow flight is too old for it. If there is no result in time, or an error, await serves
// old, the stale entry.
func (l *lookup) await(kind string, old *Entry, wait time.Duration, look func() (Result, error), tooOld func(*Entry) bool) (Result, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		first := false
		landed := l.flights.DoChan(string(l.key)+kind, func() (any, error) {
			first = true
			if !l.enter() { // a flight may outlive its requests
				return Result{}, errClosed
			}
			defer l.running.Done()
			return protect(look)
		})
		select {
		case is := <-landed:
			r, err := is.Val.(Result), is.Err
			r.Collapsed = !first
			if err != nil {
				stale, err := l.serveStale(old, err)
				stale.Times = r.Times
				return stale, err
			}
			if r.Collapsed && r.Err == nil && tooOld(r.Entry) {
				continue
			}
			r.Age, r.ByTTL = l.age(r.Entry, l.clock.Now()), !l.following.Load()
			return r, nil
		case <-timer.C:
			if s := l.memory.get(l.query); s != nil { // so that the next request does not wait as long
				l.pause(s)
			}
			return l.serveStale(old, ErrFillTimeout)
		}
	}
}

// find looks in memory, in the replica and in Redis. Then it waits for another node that may be
// filling the entry, and at last reads from the origin.
func (l *lookup) find() (Result, error) {
	if r, ok := l.findStored(); ok {
		return r, nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.options.FillTimeout)
	defer cancel()
	r, ok := l.fromFleet(ctx)
	var err error
	if !ok {
		var redis Span
		if l.redis != nil {
			redis = spanSince(l.began)
		}
		r, err = l.fromOrigin(ctx)
		r.Times.Redis = redis
	}
	if !l.stored && l.claimed { // otherwise storing the entry in Redis releases the claim
		l.redis.background(func() { l.redis.release(l.key) })
	}
	return r, err
}

// fillAnew reads the entry from the origin, whatever memory and Redis have.
func (l *lookup) fillAnew() (Result, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.options.FillTimeout)
	defer cancel()
	return l.fromOrigin(ctx)
}

// findStored looks in memory again: since the request looked, another flight may have ended, and rows may have come. Then it
// looks in Redis.
func (l *lookup) findStored() (Result, bool) {
	s, now := l.memory.get(l.query), l.clock.Now()
	if e := l.fresh(l.query, s, now); e != nil {
		return l.memoryResult(e, now), true
	}
	r, ok := l.fallback(s)
	if ok {
		return r, true
	}
	l.old, l.began = r.Entry, time.Now()
	return l.fromRedis()
}

// fromRedis makes an entry of the page in Redis. It is fresh if the replica can apply to it all
// changes since it was read. Else it may become l.old, to be served if the origin fails.
// After an error of Redis there is no further call, because each may take redisBudget.
func (l *lookup) fromRedis() (Result, bool) {
	if l.redis == nil || l.redisErr != nil {
		return Result{}, false
	}
	start := l.replica.Begin()
	var found *reading
	found, l.redisErr = l.redis.get(l.key)
	if found == nil {
		return Result{}, false
	}
	now := l.clock.Now()
	e := l.merged(start, found, now)
	switch l.judge(e, now) {
	case fresh:
		l.memory.put(e, l.remaining(e))
		return Result{Entry: e, Source: Redis, Times: &Times{Redis: spanSince(l.began)}}, true
	case stale:
		if l.old == nil || e.Proof > l.old.Proof {
			l.old = e
		}
	}
	return Result{}, false
}

// merged makes an entry of a page from Redis.
func (l *lookup) merged(start replica.Start, found *reading, now time.Duration) *Entry {
	following, known := l.following.Load(), l.followed.known.Load()
	if following && l.followed.trusted(now) && found.epoch == known.epoch {
		proof := time.Duration(l.followed.proof.Load())
		fill, outcome := l.merge(start, found)
		switch outcome {
		case replica.Merged:
			if cut := l.cut(l.query, l.list, nil, now); cut != nil {
				return cut
			}
		case replica.Parked:
			e := entryOf(l.query, found, fill)
			if l.isAhead(e) { // it shows more than that proof
				e.Proof, e.ReadAt = proof, proof
				return e
			}
		}
	}
	e := entryOf(l.query, found, nil)
	if following {
		e.Proof = min(e.Proof, now-l.followed.shareTime()) // any server may have answered, so the entry must be too old to be shared
	}
	return e
}

// merge gives the replica what was read behind the query's position.
func (l *lookup) merge(start replica.Start, f *reading) (*replica.Fill, replica.Outcome) {
	fill := &replica.Fill{Key: l.list, After: l.query.After, Read: f.Read, Start: start}
	return fill, l.replica.Merge(fill)
}

// fleetWaits are the pauses between a node's looks into Redis while another node fills
// the entry. After the last one it reads from the origin itself.
var fleetWaits = [...]time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}

// fromFleet makes sure that only one of the nodes that miss an entry concurrently fills
// it. It finds the entry that another node filled. ok is false if this node has to fill it,
// also because Redis does not answer.
func (l *lookup) fromFleet(ctx context.Context) (r Result, ok bool) {
	if l.redis == nil || l.redisErr != nil || !l.following.Load() {
		return r, false
	}
	l.claimed, l.redisErr = l.redis.claim(l.key)
	if l.redisErr != nil {
		return r, false
	}
	for _, wait := range fleetWaits {
		// The node with the claim also looks: another one may just have filled the entry
		// and released the claim.
		r, ok = l.fromRedis()
		if ok || l.claimed || l.redisErr != nil {
			break
		}
		select {
		case <-ctx.Done():
			return r, false
		case <-time.After(wait):
		}
	}
	return r, ok
}

// fromOrigin reads the entry from a standby, else from the primary. The result has times,
// also with an error.
func (l *lookup) fromOrigin(ctx context.Context) (r Result, err error) {
	l.fills.Add(1)
	times := &Times{Fill: Span{Began: time.Now()}}
	defer func() {
		times.Fill = spanSince(times.Fill.Began)
		r.Times = times
	}()
	var e *Entry
	if l.standbys && l.following.Load() && l.followed.trusted(l.clock.Now()) {
		e, _ = l.readOrigin(times, func(last changefeed.Proof) (page.Read, error) {
			return l.options.Origin.FetchFromStandby(ctx, *l.query, last)
		}) // the origin counts errors
	}
	if e == nil {
		e, err = l.readOrigin(times, func(changefeed.Proof) (page.Read, error) {
			return l.options.Origin.Fetch(ctx, *l.query, l.PrimaryStart())
		})
	}
	if err != nil {
		l.fillErrors.Add(1)
		r, err := l.serveStale(l.old, err)
		if err == nil {
			l.pause(l.memory.put(l.old, l.remaining(l.old)))
		}
		return r, err
	}
	l.memory.put(e, l.remaining(e))
	return Result{Entry: e, Source: Origin, HadStale: l.old != nil}, nil
}

// readOrigin makes an entry of what call reads, gives the rows to the replica and stores
// them in Redis, with the last moment at which they are known to have equalled the database.
// An entry of a standby's rows omits nothing from before the last proof: the replica has applied
// the missing changes, or the standby had replayed all. Else there is none.
func (l *lookup) readOrigin(times *Times, call func(last changefeed.Proof) (page.Read, error)) (*Entry, error) {
	proof := time.Duration(l.followed.proof.Load())
	last := l.followed.known.Load().last // of that moment or a later one
	readAt, start := l.clock.Now(), l.replica.Begin()
	read, err := protect(func() (page.Read, error) { return call(last) })
	times.Query = Span{read.Began, read.Took}
	if !read.Began.IsZero() {
		l.queried()
	}
	following, known := l.following.Load(), l.followed.known.Load()
	if err == nil && following && l.isOfWrongServer(&read.At, &known.last) {
		err = page.ErrWrongServer
	}
	if errors.Is(err, page.ErrWrongServer) {
		l.wrongServers.Add(1)
	}
	if err != nil {
		return nil, err
	}
	read.At.Began = start.At.Began
	f := reading{Read: read, readAt: readAt}
	by, shown := byPrimary, readAt // the rows show all that was visible at shown, unless a standby lags
	if f.At.Timeline != "" {
		by, shown = byStandby, min(readAt, proof)
		if f.At.LSN < last.LSN {
			by = byLaggingStandby
		}
	}
	do, fill := byAge[by], (*replica.Fill)(nil)
	if following {
		var outcome replica.Outcome
		f.epoch = known.epoch
		fill, outcome = l.merge(start, &f)
		do = byOutcome[outcome][by]
	}
	switch {
	case do.storeRows:
		stored := f
		stored.readAt, l.stored = shown, true
		l.redis.store(l.query, stored)
	case do.storeState:
		l.stored = l.storeState(l.query, l.list)
	}
	if do.cut {
		if cut := l.cut(l.query, l.list, nil, l.clock.Now()); cut != nil { // with the changes that the statement did not see
			if by == byPrimary { // it shows what the statement showed
				cut.Proof, cut.ReadAt = max(cut.Proof, readAt), max(cut.ReadAt, readAt)
			}
			return cut, nil
		}
	}
	if !do.serve {
		return nil, nil
	}
	entry := func(q *page.Query, cut *reading) *Entry {
		e := entryOf(q, cut, fill)
		e.Proof = shown
		return e
	}
	if do.keepBehind {
		for q, cut := range f.pages(l.query) {
			if q != l.query { // the caller puts the first page
				e := entry(q, cut)
				l.memory.put(e, l.remaining(e))
			}
		}
	}
	return entry(l.query, &f), nil
}

// disposition is what becomes of rows that were read from the origin.
type disposition struct {
	storeRows  bool // in Redis
	storeState bool // in Redis, of what the replica has
	cut        bool // the page is cut from the replica; if it cannot, serve decides
	serve      bool // the rows are the page; else there is none
	keepBehind bool // memory gets the pages behind it, too
}

// Who answered. A standby lags if it had not replayed all that the last proof shows: then nothing
// says when its rows last equalled the database.
const (
	byPrimary = iota
	byStandby
	byLaggingStandby
	answerers
)

// byOutcome says what to do by what the replica did with the rows. What it refuses is served only
// as the primary's answer.
var byOutcome = func() (all [replica.Outcomes][answerers]disposition) {
	for o := range all {
		all[o][byPrimary].serve = true
	}
	all[replica.Merged] = [answerers]disposition{
		byPrimary:        {storeRows: true, cut: true, serve: true},
		byStandby:        {storeRows: true, cut: true},
		byLaggingStandby: {storeState: true, cut: true},
	}
	all[replica.Parked] = [answerers]disposition{
		byPrimary: {storeRows: true, serve: true, keepBehind: true},
		byStandby: {storeRows: true, serve: true, keepBehind: true},
	}
	return all
}()

// byAge says what to do where changes are not followed.
var byAge = [answerers]disposition{byPrimary: {storeRows: true, serve: true, keepBehind: true}}

// isOfWrongServer reports whether the answer of a statement must not be served: another
// primary than the followed one answered, or a standby of another one, or the fleet is known
// to have a newer timeline.
func (l *lookup) isOfWrongServer(at *changefeed.ReadPoint, last *changefeed.Proof) bool {
	if at.Timeline != "" {
		return at.Timeline != last.Timeline
	}
	known := last.StartedAt != "" && l.followed.trusted(l.clock.Now())
	return at.StartedAt != last.StartedAt && (known || l.options.Followed.OldTimeline() != nil)
}
