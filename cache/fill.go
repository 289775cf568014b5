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
	// Primary reads from the primary. run is when that was started; empty = it is
	// not known. ErrWrongServer: another server answered.
	Primary func(ctx context.Context, run string) (FillResult, error)
	// Standby reads from a standby that has replayed what is required; after any
	// error the primary is asked. nil = there is no standby.
	Standby func(ctx context.Context, r Requirement) (FillResult, error)
	// Compress says that the client wants the response compressed. Other nodes then
	// get the entry in both forms.
	Compress bool
	// Place is for joining the page of entries in memory; nil = it is not joined.
	Place *Place
}

// Requirement is what a standby must have replayed.
type Requirement = freshness.Requirement

// FillResult is what the origin answers.
type FillResult struct {
	Body     []byte // up to the request id; the cache keeps it
	Next     string // the next page's cursor
	Snapshot string // from the primary: pg_current_snapshot() of the statement
	Run      string // and when its server was started
	Server   string // from a standby: system and timeline it follows
	LSN      uint64 // and what it had replayed before the statement began
	Query    Span   // when the server was asked, also in vain

	Extent *freshness.Extent // what the page shows of the list; nil = not known; the cache keeps it
}

// Span is a stretch of time; zero = there was none.
type Span struct {
	Began time.Time
	Took  time.Duration
}

// since ends a span now.
func since(began time.Time) Span { return Span{began, time.Since(began)} }

// Times are how long the parts of a flight took. All requests of the flight share
// them, and nothing changes them afterwards.
type Times struct {
	Redis Span // asking Redis, and waiting for an entry that another node fills
	Fill  Span // reading from the origin, including the wait for a turn
	Query Span // of that, the server's part
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

	redisErr error // of the last call to Redis for the entry: it is not asked again
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

// findStored looks in memory once more, for another flight may have finished since
// the request looked, then joins the entry of others there, and then looks in Redis.
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

// fillOnceInFleet waits for another node that may be filling the entry, and then asks
// the origin.
func (l *lookup) fillOnceInFleet() (Result, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.options.FillTimeout)
	defer cancel()
	if e := l.fromFleet(ctx); e != nil {
		return l.foundInRedis(e), nil
	}
	var redis Span
	if l.redis != nil {
		redis = since(l.began)
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
	return Result{Entry: e, Source: Redis, Times: &Times{Redis: since(l.began)}}
}

// fromRedis returns the key's entry in Redis, validated by the changes known here.
// An entry that is valid takes its age from this node's proof. One that is not is
// read again with the age that Redis knows, if a stale entry is of use. Where Redis has
// not answered, it is not asked again: each call may take redisBudget.
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
	if following { // it may be from any server: it must not be shared as recent
		e.Proof = min(e.Proof, l.clock.Now()-l.tracker.ShareTime())
	}
	return e
}

// fleetWaits are the pauses in which a node waits for the entry that another node
// is filling. Then it asks the origin itself.
var fleetWaits = [...]time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}

// fromFleet lets one node of all that miss an entry at once fill it. It returns the
// entry that another node filled, or nil if this node has to fill it, which it has as
// soon as Redis does not answer.
func (l *lookup) fromFleet(ctx context.Context) *Entry {
	if l.redis == nil || l.redisErr != nil || !l.following.Load() {
		return nil
	}
	var claimed bool
	if claimed, l.redisErr = l.redis.claim(l.key); l.redisErr != nil {
		return nil
	}
	for _, wait := range fleetWaits {
		// The node that has the claim looks once more, too: the one before may just have released it.
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
		times.Fill = since(times.Fill.Began)
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
	if e.Admitted() || !l.following.Load() { // else it is shared for a moment only
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

// fromStandby returns the entry if there is a standby that shows all changes known
// here. It is not known what a lagging standby lacks, so its answer is not served.
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
