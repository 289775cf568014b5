package cache

import (
	"context"
	"errors"
	"time"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// Fill reads a page, and pages behind it, from the origin. Its functions end soon after ctx
// does.
type Fill struct {
	View View
	// Primary reads from the primary. run is when the primary was started; empty = not
	// known. It returns ErrWrongServer if another server answered.
	Primary func(ctx context.Context, run string) (FillResult, error)
	// Standby reads from a standby of the primary. After any error the page is read from
	// the primary. nil = there is no standby.
	Standby func(ctx context.Context, primary changefeed.Proof) (FillResult, error)
	// Queried is called after each query that the fill makes; nil = nothing is.
	Queried func()
}

// FillResult is what the origin answers.
type FillResult struct {
	Rows  []lists.Row          // those behind View.After, in the list's order; the cache keeps them
	End   bool                 // the list ends with them
	At    changefeed.ReadPoint // without Began
	Query Span                 // of the query, also of one that failed
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
// are followed, only rows with a known read point go to Redis; the answer of a wrong server
// is not served, and that of a standby that lags only with all changes applied to it.
type lookup struct {
	*Cache
	key  []byte
	fill Fill

	old    *Entry // the newest stale entry so far, which may be served if the fill fails; nil = none
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
// request looked. Then it cuts the page out of the replica, or out of rows that were read a
// moment ago. Then it looks in Redis.
func (l *lookup) findStored() (Result, bool) {
	r, ok := l.checkMemory(l.memory.get(l.key))
	if ok {
		return r, true
	}
	l.old, l.source, l.began = r.Entry, Memory, time.Now()
	if e := l.fromRows(); e != nil {
		l.memory.put(l.key, e, l.remaining(e))
		return Result{Entry: e, Source: Memory}, true
	}
	e := l.fromRedis()
	if e == nil {
		return Result{}, false
	}
	switch l.judge(e, l.clock.Now()) {
	case fresh:
		return l.foundInRedis(e), true
	case stale:
		if l.old == nil || e.Proof > l.old.Proof {
			l.old, l.source = e, Redis
		}
	}
	return Result{}, false
}

// fromRows returns the page's entry from the replica's rows, or from those of a fill that is
// ahead of it; nil = neither has them.
func (l *lookup) fromRows() *Entry {
	now := l.clock.Now()
	if !l.following.Load() {
		return nil
	}
	if e := l.cut(l.fill.View, l.old, now); e != nil {
		return e
	}
	list := l.fill.View.List()
	fill, rows, end := l.replica.Parked(&list, l.fill.View.After())
	if fill == nil || fill.At.Timeline != "" || !l.followed.trusted(now) {
		return nil
	}
	if firstPage(rows, l.fill.View.Limit()) == len(rows) && !end { // it is not whole, or it is not known whether more follows
		return nil
	}
	e := entryOf(l.fill.View, rows, end, fill.ReadAt)
	e.fill = fill
	return e
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
	if err != nil || r.Err != nil { // otherwise storing the entry in Redis releases the claim
		l.release(l.key)
	}
	return r, err
}

func (l *lookup) foundInRedis(e *Entry) Result {
	l.memory.put(l.key, e, l.remaining(e))
	return Result{Entry: e, Source: Redis, Times: &Times{Redis: spanSince(l.began)}}
}

// fromRedis returns the key's entry in Redis: merged into the replica, which applies the
// changes that it lacks, or else with its age, so that it may be served if the origin fails.
// After an error of Redis there is no further call, because each may take redisBudget.
func (l *lookup) fromRedis() *Entry {
	if l.redis == nil || l.redisErr != nil {
		return nil
	}
	start := l.replica.Begin()
	var found *stored
	if found, l.redisErr = l.redis.get(l.key); found == nil {
		return nil
	}
	now, following := l.clock.Now(), l.following.Load()
	epoch, _ := l.followed.known()
	if following && l.followed.trusted(now) && found.epoch == epoch {
		fill := l.merging(start, found.rows, found.end, found.at, now)
		switch outcome := l.replica.Merge(fill); {
		case outcome == replica.Merged:
			if cut := l.cut(l.fill.View, nil, now); cut != nil {
				return cut
			}
		case outcome == replica.Parked && found.at.Timeline == "": // it shows more than the last proof
			e := entryOf(l.fill.View, found.rows, found.end, time.Duration(l.followed.proof.Load()))
			e.fill = fill
			return e
		}
	}
	e := entryOf(l.fill.View, found.rows, found.end, found.readAt)
	if following {
		e.Proof = min(e.Proof, now-l.followed.shareTime()) // it may be from any server, so it must be too old to be shared
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
		if e := l.fromRedis(); e != nil && l.judge(e, l.clock.Now()) == fresh {
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

// fromOrigin reads the entry from a standby, else from the primary. The result has times,
// also with an error.
func (l *lookup) fromOrigin(ctx context.Context) (r Result, err error) {
	l.fills.Add(1)
	times := &Times{Fill: Span{Began: time.Now()}}
	defer func() {
		times.Fill = spanSince(times.Fill.Began)
		r.Times = times
	}()
	e := l.fromStandby(ctx, times)
	if e == nil {
		e, err = l.fromPrimary(ctx, times)
	}
	if err != nil {
		l.fillErrors.Add(1)
		r, err := l.serveStale(l.old, l.source, err)
		if err == nil {
			l.pause(l.memory.put(l.key, l.old, l.remaining(l.old)))
		}
		return r, err
	}
	l.memory.put(l.key, e, l.remaining(e))
	return Result{Entry: e, Source: Origin, HadStale: l.old != nil}, nil
}

func (l *lookup) fromPrimary(ctx context.Context, times *Times) (*Entry, error) {
	run := l.PrimaryStart()
	e, outcome, err := l.readOrigin(times, func() (FillResult, error) { return l.fill.Primary(ctx, run) })
	if errors.Is(err, ErrWrongServer) {
		l.wrongServers.Add(1)
	}
	if err == nil && outcome == replica.WrongServer { // mutation: the wrong server's page is shared
		err = ErrWrongServer
	}
	return e, err
}

// fromStandby returns the entry if all changes that a standby lacks could be applied to what
// it read, else nil.
func (l *lookup) fromStandby(ctx context.Context, times *Times) *Entry {
	if l.fill.Standby == nil || !l.following.Load() || !l.followed.trusted(l.clock.Now()) {
		return nil
	}
	proof := time.Duration(l.followed.proof.Load())
	_, last := l.followed.known()
	var lsn uint64
	e, outcome, err := l.readOrigin(times, func() (f FillResult, err error) {
		f, err = l.fill.Standby(ctx, last)
		lsn = f.At.LSN
		return f, err
	})
	switch {
	case err != nil: // the origin counts errors
	case outcome == replica.Merged && e.list != nil:
		return e
	case outcome == replica.Parked && lsn >= last.LSN: // it shows all that was visible at the moment of the proof
		e.Proof = min(e.Proof, proof)
		return e
	}
	return nil
}

// readOrigin makes an entry of what call reads, gives the rows to the replica and stores
// them in Redis.
func (l *lookup) readOrigin(times *Times, call func() (FillResult, error)) (*Entry, replica.Outcome, error) {
	readAt := l.clock.Now()
	start := l.replica.Begin()
	f, err := protect(call)
	times.Query = f.Query
	if l.fill.Queried != nil && !f.Query.Began.IsZero() {
		l.fill.Queried()
	}
	if err != nil {
		return nil, 0, err
	}
	at := f.At
	at.Began = start.At
	view := l.fill.View
	if !l.following.Load() {
		p := stored{rows: f.Rows, end: f.End, at: at, readAt: readAt}
		ahead := false // the caller puts the first page
		for v, page := range p.pages(view) {
			if ahead {
				l.memory.put(v.Key(), entryOf(v, page.rows, page.end, readAt), l.life())
			}
			ahead = true
		}
		l.store(view, p)
		return entryOf(view, f.Rows, f.End, readAt), replica.Merged, nil
	}
	epoch, last := l.followed.known()
	outcome, fill := replica.WrongServer, (*replica.Fill)(nil)
	if l.isOfWrongServer(&at, &last) {
		l.wrongServers.Add(1)
	} else {
		fill = l.merging(start, f.Rows, f.End, at, readAt)
		if outcome = l.replica.Merge(fill); outcome == replica.WrongServer {
			outcome = replica.Resynced // while nothing is proven, the server may be a new primary
		}
	}
	if outcome == replica.Merged || outcome == replica.Parked {
		l.store(view, stored{rows: f.Rows, end: f.End, at: at, epoch: epoch, readAt: readAt})
	} else {
		l.release(l.key)
	}
	if outcome == replica.Merged {
		if cut := l.cut(view, nil, l.clock.Now()); cut != nil { // with the changes that the statement did not see
			if at.Timeline == "" { // it shows what the statement showed
				cut.Proof, cut.ReadAt = max(cut.Proof, readAt), max(cut.ReadAt, readAt)
			}
			return cut, outcome, nil
		}
	}
	e := entryOf(view, f.Rows, f.End, readAt)
	e.fill = fill
	return e, outcome, nil
}

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

// merging makes a fill for the replica of the rows behind the view's position.
func (l *lookup) merging(start replica.Start, rows []lists.Row, end bool, at changefeed.ReadPoint, readAt time.Duration) *replica.Fill {
	return &replica.Fill{Key: l.fill.View.List(), After: l.fill.View.After(), Rows: rows, End: end, At: at, Start: start, ReadAt: readAt}
}
