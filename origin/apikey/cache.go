// Package apikey authenticates requests: it reads the API keys in Postgres and
// keeps those in use in memory.
//
//	request ──► Authenticate ──► entry in memory, valid ────────────────► Entry
//	                   │ else
//	                   └──► lookups ── one query for many keys ──► Store ──► Entry
//
//	log of changes ──► Beat ── invalidates the entries of a changed row,
//	                           and proves that all other entries are valid
//
// An entry is valid for maxAge after its look-up, and longer while the log
// proves that its rows have not changed. If changes are not followed, the
// entries in use are looked up again every refreshEvery. So, while look-ups
// are answered, a revocation reaches every node within maxAge, in either mode.
package apikey

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/origin/postgres"
)

const (
	// maxAge: while Postgres answers in time, no request relies on an entry that
	// was last known to be right longer ago.
	maxAge = time.Second
	// refreshEvery is how often the entries in use are looked up where changes are
	// not followed. It is far enough below maxAge that requests do not wait.
	refreshEvery = maxAge * 2 / 5

	// requestTimeout bounds how long a request waits for Postgres.
	requestTimeout = 1500 * time.Millisecond
	// recentTimeout bounds that wait for a key that was right within recentAge: then the
	// request uses the old entry. An older one may have been revoked minutes ago,
	// and the request waits as long as it can.
	recentTimeout = 200 * time.Millisecond
	recentAge     = 5 * maxAge
	// waitPause is how long no request waits for a key that was right within recentAge, after
	// one has waited without an answer.
	waitPause = time.Second
	idleTTL   = 10 * time.Minute // how long an entry stays that no request uses
	idleScan  = time.Minute      // the time between two scans for such entries, where changes are followed
)

// Cache holds the keys that this node has seen. Each entry has a T that the
// caller makes of the key once.
//
// Invariant: Authenticate returns an entry that was right less than maxAge ago,
// or that was looked up after the call began, or that was right less than
// recentAge ago while Postgres is slow, or less than grace ago while Postgres
// cannot be reached. An entry that may be wrong because of a change counts as
// within grace only where nothing proves that the primary is up.
type Cache[T any] struct {
	lookup  Lookup
	imports imports
	attach  func(k Key, value *T)
	grace   time.Duration
	clock   *boottime.Clock

	entriesMu sync.RWMutex // guards the next four
	entries   map[Hash]*Entry[T]
	rows      map[uuid.UUID][]*Entry[T] // by the id of the key's row and of its workspace's
	gone      map[Hash]time.Duration    // by keys that had an entry: when a look-up began that did not find them
	changedAt time.Duration             // when a change of any key was last applied

	proof       atomic.Pointer[proof] // nil = nothing is proven
	unsettled   uint64                // the LSN of the last change that was seen before it settled; only Beat and Reset use it
	lastProof   proof                 // the last there was, also before a reset; only Beat uses it
	wrongServer atomic.Bool           // a server other than the primary answered last
	noWaitUntil atomic.Int64          // until then requests do not wait for recent keys

	mu             sync.Mutex // guards the next two, and orders await's done.Go before Close's Wait
	queue          lookupQueue
	running        bool          // runLookups runs
	unknownLimiter *rate.Limiter // of queries that ask for unknown keys

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done sync.WaitGroup

	hits, loaded, queries, unknowns, failures, withinGrace atomic.Uint64
}

// Entry is a key as this node knows it. Key and Value do not change: a changed
// key gets another entry.
type Entry[T any] struct {
	// Moments of the cache's clock; written under entriesMu.
	validatedAt   atomic.Int64 // as of when the entry was right by its look-up, or by a proof before a reset
	invalidatedAt atomic.Int64 // when a change of its rows was last applied
	changedSince  atomic.Int64 // when the first of the changes arrived that invalidated it since it was right

	used  atomic.Bool // by a request since the last scan
	Key   Key
	Value T

	hash     Hash
	lastUsed time.Duration // as of the last scan; the refresher's
}

// rows are the ids of the rows that the entry depends on.
func (e *Entry[T]) rows() [2]uuid.UUID { return [...]uuid.UUID{e.Key.ID, e.Key.Workspace} }

// proof says that the log of changes is complete between two moments, for one run of
// the primary. Let an entry be looked up after since, on that server. If no change has
// invalidated it, it was right at until.
//
// The reason: when until is proven, each change that became visible
// between since and until has been settled (changefeed.Listener). Let
// a key be looked up after since, and let a change of it become visible after
// that look-up and before until. It settled after the look-up began, so it has
// invalidated the entry, or the result of the look-up in flight (store).
//
// The proof does not cover an answer of another server, such as an old primary that
// still runs. Such an entry is right only as of its look-up.
type proof struct {
	since, until time.Duration         // by the cache's clock
	upSince      time.Duration         // since when the primary has been up without a break of maxAge, also before a reset
	run          unique.Handle[string] // when the server was started
}

// covers says whether the proof is about a look-up at that moment, by that run of the primary.
func (p *proof) covers(lookedUp time.Duration, run unique.Handle[string]) bool {
	return p != nil && lookedUp > p.since && p.run == run
}

// recent says whether the proof is so recent that no entry becomes too old before the
// next refresh.
func (p *proof) recent(now time.Duration) bool { return p != nil && now-p.until <= refreshEvery }

// isYoung says whether the primary was up less than maxAge ago.
func (p *proof) isYoung(now time.Duration) bool {
	return p != nil && now-p.until < maxAge
}

// runAt returns the run of the primary, if the proof is younger than maxAge; else empty.
// An older proof must not cause the answers of a restarted primary to be refused.
func (p *proof) runAt(now time.Duration) string {
	if p.isYoung(now) {
		return p.run.Value()
	}
	return ""
}

// never is a moment before all others, also after a subtraction.
const never = time.Duration(math.MinInt64 / 2)

// NewCache starts a cache. With forms = nil all keys are ours. attach makes the value of a new or changed key.
// grace bounds how long known keys are accepted while Postgres cannot be reached.
func NewCache[T any](lookup Lookup, forms Forms, attach func(k Key, value *T), grace time.Duration, clock *boottime.Clock) *Cache[T] {
	c := &Cache[T]{lookup: lookup, imports: imports{read: forms, clock: clock}, attach: attach, grace: grace, clock: clock,
		entries: map[Hash]*Entry[T]{}, rows: map[uuid.UUID][]*Entry[T]{}, gone: map[Hash]time.Duration{}, changedAt: never,
		queue: lookupQueue{calls: map[Hash]*lookupCall{}}, unknownLimiter: rate.NewLimiter(unknownQueriesPerSecond, unknownQueryBurst)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.done.Go(c.refresh)
	return c
}

// Close ends look-ups in flight and waits for them.
func (c *Cache[T]) Close() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.done.Wait()
}

// Authenticate returns the entry of the key with this text. Where memory has no valid one, it calls suspect and waits
// for a look-up. The caller read now when the request arrived: reading the clock again costs as much as all the rest.
// last is of the connection that the text came by. suspect says whether the client has sent too many unknown keys: then
// a key that is new to this node waits behind those of other clients.
// Errors: ErrMalformed, ErrUnknown, or postgres.ErrUnavailable and its kinds.
func (c *Cache[T]) Authenticate(now time.Time, text []byte, last *LastKey, suspect func() bool) (*Entry[T], error) {
	var room [MaxForms]Hash
	hashes, err := c.hashes(text, last, room[:0])
	if err != nil {
		return nil, err
	}
	if e := c.valid(c.clock.At(now), hashes...); e != nil {
		return e, nil
	}
	priority := ordinaryKey
	if suspect() {
		priority = suspectKey
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	return c.load(ctx, priority, hashes...)
}

// hashes appends the hashes that the text may have as a key: one if it has our form.
func (c *Cache[T]) hashes(text []byte, last *LastKey, to []Hash) ([]Hash, error) {
	hash, ours := last.hashOf(text)
	switch {
	case ours:
		return append(to, hash), nil
	case c.imports.read == nil || !mayBeImported(text):
		return nil, ErrMalformed
	}
	known := c.imports.known.Load().hashes(text, to)
	if c.find(known...) != nil { // further forms would not matter
		return known, nil
	}
	now, err := c.imports.ofNow(c.ctx, c.hold, func() string { c.queries.Add(1); return c.proof.Load().runAt(c.clock.Now()) })
	if err != nil {
		c.failures.Add(1)
		return nil, err
	}
	to = now.hashes(text, to)
	if len(to) == 0 {
		return nil, ErrMalformed
	}
	return to, nil
}

// hold says whether the forms are proven to be those of at most refreshEvery ago: an import changes keys.
// It reads the proof first: a change is applied before a later moment is proven.
func (c *Cache[T]) hold(k *knownForms) bool {
	p := c.proof.Load()
	c.entriesMu.RLock()
	defer c.entriesMu.RUnlock()
	return p.recent(c.clock.Now()) && p.covers(k.at, k.run) && k.at > c.changedAt
}

// valid returns the key's entry if a request that came at that moment may rely on it without a look-up, else nil.
func (c *Cache[T]) valid(now time.Duration, hashes ...Hash) *Entry[T] {
	e := c.find(hashes...)
	if e == nil {
		return nil
	}
	if at, changed := c.validAt(e); changed || now-at > maxAge {
		return nil
	}
	if !e.used.Load() { // most do not write to memory that other processors read
		e.used.Store(true)
	}
	c.hits.Add(1)
	return e
}

// validAt is the moment as of which the entry is known to be right, and whether
// a change was applied since. It reads the proof first: a change invalidates
// the entry before a later moment is proven.
func (c *Cache[T]) validAt(e *Entry[T]) (at time.Duration, changed bool) {
	p := c.proof.Load()
	at = time.Duration(e.validatedAt.Load())
	changed = at <= time.Duration(e.invalidatedAt.Load())
	if !changed && !e.Key.Scheduled && p.covers(at, e.Key.StartedAt) {
		at = max(at, p.until)
	}
	return at, changed
}

// load looks up the key that has one of the hashes and waits, at most until ctx ends.
func (c *Cache[T]) load(ctx context.Context, priority lookupPriority, hashes ...Hash) (*Entry[T], error) {
	before, waiting := c.find(hashes...), ctx
	if before != nil {
		priority, hashes = knownKey, []Hash{before.hash}
		before.used.Store(true) // an outage may outlast idleTTL
		if c.usable(before, min(recentAge, c.grace)) {
			if c.clock.Now() < time.Duration(c.noWaitUntil.Load()) {
				c.withinGrace.Add(1)
				return before, nil
			}
			var cancel context.CancelFunc
			waiting, cancel = context.WithTimeout(ctx, recentTimeout)
			defer cancel()
		}
	}
	for {
		err := c.await(waiting, hashes, priority)
		e := c.find(hashes...) // maybe another than before: other look-ups may have found, changed or removed it meanwhile
		switch {
		case err == nil && e != nil:
			e.used.Store(true)
			c.loaded.Add(1)
			return e, nil
		case err == nil || errors.Is(err, ErrUnknown):
			c.unknowns.Add(1)
			return nil, ErrUnknown
		case e != nil && c.usable(e, c.grace):
			if !errors.Is(err, postgres.ErrOverloaded) { // a full queue says nothing of Postgres
				c.noWaitUntil.Store(int64(c.clock.Now() + waitPause))
			}
			c.withinGrace.Add(1)
			return e, nil
		case waiting != ctx && waiting.Err() != nil: // it has changed or gone meanwhile: only the answer can be used
			waiting = ctx
		default:
			c.failures.Add(1)
			return nil, err
		}
	}
}

// usable says whether a request may use the entry without a look-up because it was right less than age ago. A key that was changed,
// or whose schedule may have come due, may be revoked. It is not usable once it has been in doubt for recentAge while the primary was
// up all along, also if all look-ups fail; and a changed one not at all while another server answers for the primary.
func (c *Cache[T]) usable(e *Entry[T], age time.Duration) bool {
	now := c.clock.Now()
	at, changed := c.validAt(e)
	doubted := max(at, time.Duration(e.changedSince.Load())) // a new entry may come from a look-up that a change overtook
	if e.Key.Scheduled {
		doubted = at // whatever else has changed since
	}
	p := c.proof.Load()
	if (changed || e.Key.Scheduled) && p.isYoung(now) && now-max(doubted, p.upSince) >= recentAge {
		return false
	}
	return now-at < age && !(changed && c.wrongServer.Load())
}

// await queues the hashes and waits until one is known to have a key, or all have been looked up. One
// query looks up many of those that wait.
func (c *Cache[T]) await(ctx context.Context, hashes []Hash, p lookupPriority) error {
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		return postgres.ErrUnavailable
	}
	calls := c.queue.join(hashes, p)
	if !c.running {
		c.running = true
		c.done.Go(c.runLookups)
	}
	c.mu.Unlock()
	if calls == nil {
		return postgres.ErrOverloaded
	}
	return waitFor(ctx, calls)
}

// runLookups makes query after query until no key waits. The keys of the next query gather while one is in flight.
func (c *Cache[T]) runLookups() {
	for {
		c.mu.Lock()
		batch, calls := c.queue.next()
		c.running = len(batch) > 0
		c.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		err := c.update(batch)
		unknown := false
		for i, call := range calls {
			call.err = err
			if err == nil && c.find(batch[i]) == nil {
				call.err, unknown = ErrUnknown, true
			}
			close(call.done)
		}
		if unknown {
			_ = c.unknownLimiter.Wait(c.ctx) // Close ends c.ctx, and then look-ups fail at once
		}
	}
}

// update looks the keys up in one query and stores the result.
func (c *Cache[T]) update(hashes []Hash) error {
	ctx, cancel := context.WithTimeout(c.ctx, lookupTimeout)
	defer cancel()
	run := c.proof.Load().runAt(c.clock.Now())
	began := c.clock.Of(time.Now()) // at once, and after Now: behind a sleep, Of knows of no earlier one either
	found, err := c.lookup(ctx, hashes, run)
	if !errors.Is(err, errNotAsked) {
		c.queries.Add(1)
	}
	if err != nil {
		if errors.Is(err, postgres.ErrWrongServer) {
			c.wrongServer.Store(true)
		}
		return err
	}
	c.wrongServer.Store(false)
	for _, hash := range hashes {
		key, exists := found[hash]
		c.store(hash, key, exists, began)
	}
	return nil
}

// store keeps the result of a look-up that began then, unless one that began later has already stored its own.
func (c *Cache[T]) store(hash Hash, key Key, exists bool, began time.Duration) {
	c.entriesMu.Lock()
	defer c.entriesMu.Unlock()
	before := c.entries[hash]
	goneAt, isGone := c.gone[hash]
	switch {
	case before != nil && time.Duration(before.validatedAt.Load()) > began, isGone && goneAt > began:
		return
	case !exists:
		if before != nil {
			c.gone[hash] = began
		}
		c.evict(before)
		return
	case before != nil && before.Key == key:
		before.validatedAt.Store(int64(began))
		return
	}
	e := &Entry[T]{Key: key, hash: hash, lastUsed: began}
	e.validatedAt.Store(int64(began))
	e.used.Store(true)
	e.invalidatedAt.Store(int64(c.changedAt)) // it may have been of this key, which was not in rows yet
	c.attach(key, &e.Value)
	c.evict(before)
	c.entries[hash] = e
	for _, id := range e.rows() {
		c.rows[id] = append(c.rows[id], e)
	}
}

// find returns the entry that has one of the hashes; nil = none has.
func (c *Cache[T]) find(hashes ...Hash) *Entry[T] {
	c.entriesMu.RLock()
	defer c.entriesMu.RUnlock()
	for _, hash := range hashes {
		if e := c.entries[hash]; e != nil {
			return e
		}
	}
	return nil
}

// evict removes an entry; nil = none. entriesMu is locked.
func (c *Cache[T]) evict(e *Entry[T]) {
	if e == nil {
		return
	}
	delete(c.entries, e.hash)
	for _, id := range e.rows() {
		c.rows[id] = slices.DeleteFunc(c.rows[id], func(other *Entry[T]) bool { return other == e })
		if len(c.rows[id]) == 0 {
			delete(c.rows, id)
		}
	}
}

// refresh looks the entries in use up again before they are too old.
func (c *Cache[T]) refresh() {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	var scanAt time.Duration
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		now := c.clock.Now()
		proven := c.proof.Load().recent(now)
		if proven && now < scanAt {
			continue
		}
		scanAt = now + idleScan
		due, idle := c.scan(now)
		c.evictIdle(idle)
		if proven {
			due = nil
		}
		for batch := range slices.Chunk(due, lookupBatch) {
			if c.update(batch) != nil {
				break // requests use what is known, within grace
			}
		}
	}
}

// scan returns the entries that a request has used since they were right, and those that no
// request has used for long. Requests read meanwhile.
func (c *Cache[T]) scan(now time.Duration) (due []Hash, idle []*Entry[T]) {
	c.entriesMu.RLock()
	defer c.entriesMu.RUnlock()
	for hash, e := range c.entries {
		if e.used.Swap(false) {
			e.lastUsed = now
		}
		if now-e.lastUsed > idleTTL {
			idle = append(idle, e)
		} else if e.lastUsed > time.Duration(e.validatedAt.Load()) {
			due = append(due, hash)
		}
	}
	return due, idle
}

// evictIdle evicts the entries that no request has used since the scan. One that was used may be
// what a request is about to find, after a look-up has just confirmed or replaced it.
func (c *Cache[T]) evictIdle(idle []*Entry[T]) {
	c.entriesMu.Lock()
	defer c.entriesMu.Unlock()
	now := c.clock.Now()
	maps.DeleteFunc(c.gone, func(_ Hash, at time.Duration) bool { return now-at > lookupTimeout }) // whoever began before has ended
	for _, e := range idle {
		if present := c.entries[e.hash]; present != nil && !present.used.Load() {
			c.evict(present)
		}
	}
}

// Beat implements changefeed.Listener. The first proof after a Reset covers the changes from
// now on: a change that is not visible yet is published after the proof's heartbeat, or that
// heartbeat lists it as unsettled.
func (c *Cache[T]) Beat(b changefeed.Beat) {
	for _, change := range b.Settled {
		c.apply(change)
	}
	for _, change := range b.Unsettled { // once: another server that misses it must not be believed until it settles
		if change.LSN > c.unsettled {
			c.unsettled = change.LSN
			c.apply(change)
		}
	}
	if b.Moment.IsZero() {
		return
	}
	now := c.clock.Now()
	p := proof{since: now, until: c.clock.Of(b.Moment), upSince: now, run: unique.Make(b.StartedAt)}
	if before := c.proof.Load(); before != nil {
		p.since = before.since
	}
	if c.lastProof.isYoung(now) {
		p.upSince = c.lastProof.upSince
	}
	c.lastProof = p
	c.proof.Store(&p)
}

// apply invalidates the entries of the rows that a transaction changed.
func (c *Cache[T]) apply(change *changefeed.Change) {
	for _, t := range change.Touched {
		if t.List == nil {
			c.invalidate(&t)
		}
	}
}

// invalidate forces a look-up before a request relies on an entry of the row, or on any if the change does not name its rows.
// It keeps the moment as of which the entry was right, for requests while Postgres cannot be reached.
func (c *Cache[T]) invalidate(t *changefeed.Touched) {
	c.entriesMu.Lock()
	defer c.entriesMu.Unlock()
	c.changedAt = c.clock.Now()
	row, err := uuid.Parse(t.Tenant)
	of := c.rows[row]
	if t.All || err != nil {
		of = slices.Collect(maps.Values(c.entries))
	}
	for _, e := range of {
		at, changed := c.validAt(e)
		if !changed {
			e.changedSince.Store(int64(c.changedAt))
		}
		e.invalidatedAt.Store(int64(c.changedAt))
		e.validatedAt.Store(int64(at))
	}
}

// Reset implements changefeed.Listener. It drops the proof. Before that, it stores in
// each entry the moment as of which the proof showed it right.
func (c *Cache[T]) Reset(string, changefeed.ResetCause) {
	c.entriesMu.Lock()
	for _, e := range c.entries {
		at, _ := c.validAt(e)
		e.validatedAt.Store(int64(at))
	}
	c.entriesMu.Unlock()
	c.proof.Store(nil)
	c.unsettled = 0
}

// Stats returns the counts since the start and the present size.
func (c *Cache[T]) Stats() Stats {
	c.entriesMu.RLock()
	defer c.entriesMu.RUnlock()
	return Stats{Hits: c.hits.Load(), Loaded: c.loaded.Load(), Queries: c.queries.Load(),
		Unknown: c.unknowns.Load(), Failures: c.failures.Load(), WithinGrace: c.withinGrace.Load(), Known: len(c.entries)}
}

// Label returns the label of the key with this id, as this node last read it; empty = the
// node does not know the key.
func (c *Cache[T]) Label(id uuid.UUID) (l Label) {
	c.entriesMu.RLock()
	defer c.entriesMu.RUnlock()
	for _, e := range c.rows[id] {
		l = e.Key.Label
	}
	return l
}
