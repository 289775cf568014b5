package cache

import (
	"context"
	"errors"
	"time"

	"listedge/cache/freshness"
	"listedge/internal/changefeed"
)

// Fill reads a list from the origin. Its functions end soon after ctx does.
type Fill struct {
	// Primary reads from the primary. run is when the primary was started; empty = not
	// known. It returns ErrWrongServer if another server answered.
	Primary func(ctx context.Context, run string) (FillResult, error)
	// Standby reads from a standby that meets the requirement. After any error the page
	// is read from the primary. nil = there is no standby.
	Standby func(ctx context.Context, r Requirement) (FillResult, error)
	// Compress says that the client wants the response compressed. Other nodes then
	// get the entry in both forms.
	Compress bool
	// Place is for joining the page from entries in memory; nil = it is not joined.
	Place *Place
	// Queried is called after each query that the fill makes for the request that began it;
	// nil = nothing is. A refresh does not call it.
	Queried func()
}

// Requirement is what a standby must have replayed.
type Requirement = freshness.Requirement

// FillResult is what the origin answers.
type FillResult struct {
	Body     []byte // up to the request id; the cache keeps it
	Next     string // the next page's cursor
	Snapshot string // from the primary: pg_current_snapshot() of the statement
	Run      string // from the primary: when it was started
	Server   string // from a standby: the system and timeline that it follows
	LSN      uint64 // from a standby: up to here it had replayed before the statement began
	Query    Span   // of the query, also of one that failed

	Extent *freshness.Extent // the part of the list that the page shows; nil = not known; the cache keeps it
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

// lookup finds an entry that is not fresh in memory: in the tiers, or by a fill.
//
// Invariants: a fill has its own deadline, whatever request began it; where changes
// are followed, only an admitted entry goes to Redis; the answer of a wrong server,
// or of a standby that lags, is not served.
type lookup struct {
	*Cache
	key  []byte
	list changefeed.List
	fill Fill

	stale  *Entry // the newest stale entry so far, which may be served if the fill fails; nil = none
	source Source // where it was found
	began  time.Time

	redisErr error // of the last call to Redis for the entry; after an error there is no further call
}

// find looks in the tiers and then fills the entry.
func (l *lookup) find() (Result, error) {
	if r, ok := l.findStored(); ok {
		return r, nil
	}
	return l.fillOnceInFleet()
}

// fillAnew reads the entry from the origin, whatever the tiers have.
func (l *lookup) fillAnew() (Result, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.options.FillTimeout)
	defer cancel()
	return l.fromOrigin(ctx)
}

// findStored looks in memory again, because another flight may have finished since the
// request looked. Then it tries to join the entry from others in memory. Then it looks in
// Redis.
func (l *lookup) findStored() (Result, bool) {
	r, ok := l.checkMemory(l.memory.get(l.key))
	if ok {
		return r, true
	}
	l.stale, l.source, l.began = r.Entry, Memory, time.Now()
	if e := l.joinFromMemory(); e != nil {
		return Result{Entry: e, Source: Memory, Local: true, Joined: true}, true
	}
	e := l.fromRedis(true)
	if e == nil {
		return Result{}, false
	}
	switch l.judge(e, l.clock.Now()) {
	case freshness.Fresh:
		return l.foundInRedis(e), true
	case freshness.Stale:
		if l.stale == nil || e.Proof > l.stale.Proof {
			l.stale, l.source = e, Redis
		}
	}
	return Result{}, false
}

// fillOnceInFleet waits for another node that may be filling the entry, and then reads
// from the origin.
func (l *lookup) fillOnceInFleet() (Result, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.options.FillTimeout)
	defer cancel()
	if e := l.fromFleet(ctx); e != nil {
		return l.foundInRedis(e), nil
	}
	var redis Span
	if l.redis != nil {
		redis = spanSince(l.began)
	}
	r, err := l.fromOrigin(ctx)
	r.Times.Redis = redis
	if !l.following.Load() {
		return r, err
	}
	filled := err == nil && r.Err == nil
	if filled && (r.Entry.Admitted() || l.refresher.retryUntilVisible(l.key, l.list, r.Entry, l.fill)) {
		return r, nil // storing an admitted entry in Redis releases the claim
	}
	l.release(l.key)
	return r, err
}

func (l *lookup) foundInRedis(e *Entry) Result {
	l.joiner.add(l.fill.Place, l.memory.put(l.key, e, l.remaining(e)))
	return Result{Entry: e, Source: Redis, Times: &Times{Redis: spanSince(l.began)}}
}

// fromRedis returns the key's entry in Redis, validated by the changes known here.
// The age of a valid entry is that of this node's proof. If the entry is not valid and
// useStale is true, it is read again with its age (getAged). After an error of Redis
// there is no further call, because each may take redisBudget.
func (l *lookup) fromRedis(useStale bool) (e *Entry) {
	if l.redis == nil || l.redisErr != nil {
		return nil
	}
	following := l.following.Load()
	validate := func(e *Entry) bool {
		return following && l.tracker.ValidateFromRedis(&e.Validity, l.list, l.clock.Now())
	}
	if following && l.tracker.Trusted(l.clock.Now()) {
		if e, l.redisErr = l.redis.get(l.key); e == nil || validate(e) {
			return e
		}
		if !useStale {
			return nil
		}
	}
	e, l.redisErr = l.redis.getAged(l.key)
	if e == nil || validate(e) { // it may have been replaced
		return e
	}
	if following { // it may be from any server, so it must be too old to be shared
		e.Proof = min(e.Proof, l.clock.Now()-l.tracker.ShareTime())
	}
	return e
}

// fleetWaits are the pauses between a node's looks into Redis while another node fills
// the entry. After the last one it reads from the origin itself.
var fleetWaits = [...]time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}

// fromFleet makes sure that only one of the nodes that miss an entry concurrently fills
// it. It returns the entry that another node filled, or nil if this node has to fill it.
// If Redis does not answer, this node has to.
func (l *lookup) fromFleet(ctx context.Context) *Entry {
	if l.redis == nil || l.redisErr != nil || !l.following.Load() {
		return nil
	}
	var claimed bool
	if claimed, l.redisErr = l.redis.claim(l.key); l.redisErr != nil {
		return nil
	}
	for _, wait := range fleetWaits {
		// The node with the claim also looks: another one may just have filled the entry
		// and released the claim.
		if e := l.fromRedis(false); e != nil && l.judge(e, l.clock.Now()) == freshness.Fresh {
			if claimed {
				l.release(l.key)
			}
			return e
		}
		if claimed || l.redisErr != nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
	return nil
}

// fromOrigin reads the entry from a standby, else from the primary, and stores it
// if it is admitted. The answer of a wrong server is not served. The result has
// times, also with an error.
func (l *lookup) fromOrigin(ctx context.Context) (r Result, err error) {
	l.fills.Add(1)
	times := &Times{Fill: Span{Began: time.Now()}}
	defer func() {
		times.Fill = spanSince(times.Fill.Began)
		r.Times = times
	}()
	if l.stale != nil {
		_, wanted := l.stale.compressed()
		l.fill.Compress = l.fill.Compress || wanted
	}
	e := l.fromStandby(ctx, times)
	if e == nil {
		e, err = l.fromPrimary(ctx, times)
	}
	if err != nil {
		l.fillErrors.Add(1)
		r, err := l.serveStale(l.stale, l.source, err)
		if err == nil {
			l.pause(l.memory.put(l.key, l.stale, l.remaining(l.stale)))
		}
		return r, err
	}
	s := l.memory.put(l.key, e, l.remaining(e))
	if e.Admitted() {
		l.joiner.add(l.fill.Place, s)
		l.refresher.remember(s, l.list, l.fill)
	}
	if e.Admitted() || !l.following.Load() { // otherwise it is only shared, for ShareTime
		l.store(l.key, e)
	}
	r = Result{Entry: e, Source: Origin}
	r.replaces(l.stale)
	return r, nil
}

func (l *lookup) fromPrimary(ctx context.Context, times *Times) (*Entry, error) {
	_, run := l.Primary()
	e, admission, err := l.read(times, func() (FillResult, error) { return l.fill.Primary(ctx, run) })
	if errors.Is(err, ErrWrongServer) {
		l.admissions[freshness.WrongServer].Add(1)
	}
	if err == nil && admission == freshness.WrongServer {
		err = ErrWrongServer
	}
	return e, err
}

// fromStandby returns the entry if a standby shows all changes that are known here, else
// nil. The answer of a lagging standby is not served, because it is not known how old it
// is.
func (l *lookup) fromStandby(ctx context.Context, times *Times) *Entry {
	if l.fill.Standby == nil || !l.following.Load() {
		return nil
	}
	required, ok := l.tracker.Require(l.list, l.clock.Now())
	if !ok {
		return nil
	}
	e, admission, err := l.read(times, func() (FillResult, error) { return l.fill.Standby(ctx, required) })
	if err != nil || admission != freshness.Admitted { // the origin counts errors
		return nil
	}
	return e
}

// read makes an entry of what call reads, and decides whether it may be stored.
func (l *lookup) read(times *Times, call func() (FillResult, error)) (*Entry, freshness.Admission, error) {
	now := time.Now()
	at := l.clock.At(now)
	readAt := l.clock.Of(now)
	start := l.tracker.Begin(readAt, at)
	f, err := protect(call)
	times.Query = f.Query
	if l.fill.Queried != nil && !f.Query.Began.IsZero() {
		l.fill.Queried()
	}
	if err != nil {
		return nil, 0, err
	}
	e := NewEntry(f.Body, f.Next)
	e.Proof, e.ReadAt = readAt, readAt
	if l.fill.Compress {
		e.Deflate()
	}
	if !l.following.Load() {
		return e, freshness.Admitted, nil
	}
	e.ReadPoint, e.Extent = freshness.ReadPoint{Run: f.Run, Server: f.Server, LSN: f.LSN}, f.Extent
	admission := freshness.NotVisible
	if !e.ReadPoint.OnStandby() {
		e.ReadPoint.Snapshot, err = changefeed.ParseSnapshot(f.Snapshot)
	}
	if err == nil {
		admission = l.tracker.Admit(start, &e.Validity, l.list, l.clock.Now())
	}
	l.admissions[admission].Add(1)
	return e, admission, nil
}
