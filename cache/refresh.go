package cache

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"listedge/cache/freshness"
	"listedge/internal/changefeed"
)

// refresher fills entries ahead of their requests: hot entries that a change has
// just made stale, and the next page of a client that walks through a list.
//
//	fill ── requested often ──► remember ──► the list's hot entries
//	log ──► changed ── concerns the page ──────┐ queue ──► worker ── still hot ──► flight
//	response with a cursor ──► PrefetchNext ───┘
//
// After a change each hot entry costs one query, and no request waits for it. The number
// of workers bounds the queries of the refresher. An entry that does not fit into the
// queue is filled by its next request.
type refresher struct {
	cache   *Cache
	tasks   chan func()
	workers sync.WaitGroup

	mu  sync.Mutex // guards hot
	hot map[changefeed.List][]*hotEntry

	refreshed, dropped            atomic.Uint64
	prefetched, prefetchesDropped atomic.Uint64
}

// hotEntry is an entry to be refreshed when its list changes. It does not keep the
// entry from being evicted.
type hotEntry struct {
	slot   weak.Pointer[slot]
	list   changefeed.List
	fill   Fill
	queued atomic.Bool
}

const (
	refreshWorkers = 4
	refreshQueue   = 256
	// hotRate is the number of requests a second from which on an entry is hot.
	hotRate = 4
	// maxHotEntries bounds the hot entries of a list, and maxHotLists the lists that
	// have hot entries.
	maxHotEntries, maxHotLists = 16, 1 << 14
	// coolAfter is how long a hot entry may have no request. Then it is forgotten.
	coolAfter = time.Second
)

// visibilityWaits are the pauses between the retries of a fill that did not see a
// change. A change is published before new snapshots see it, mostly by less than a
// millisecond. A commit that waits for a synchronous standby takes longer than all
// retries.
var visibilityWaits = [...]time.Duration{time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond, 8 * time.Millisecond, 16 * time.Millisecond}

// isHot reports whether an entry that had so many requests in the elapsed time is worth
// a query ahead of its next request. An entry without a request since its last fill is
// not, so it is never refreshed more often than it is requested.
func isHot(requests uint64, elapsed time.Duration) bool {
	return requests > 0 && float64(requests) >= hotRate*elapsed.Seconds()
}

func startRefresher(c *Cache) *refresher {
	r := &refresher{cache: c, tasks: make(chan func(), refreshQueue), hot: map[changefeed.List][]*hotEntry{}}
	for range refreshWorkers {
		r.workers.Go(r.work)
	}
	return r
}

// work runs tasks until the cache's context ends.
func (r *refresher) work() {
	for {
		select {
		case <-r.cache.ctx.Done():
			return
		case task := <-r.tasks:
			if r.cache.enter() {
				task()
				r.cache.running.Done()
			}
		}
	}
}

// enqueue puts the task into the workers' queue. If the queue is full, it counts the task
// as dropped and returns false.
func (r *refresher) enqueue(task func(), dropped *atomic.Uint64) bool {
	select {
	case r.tasks <- task:
		return true
	default:
		dropped.Add(1)
		return false
	}
}

// popularity is how many requests the entry had since it was last filled, and how
// long ago that is.
func (r *refresher) popularity(s *slot) (requests uint64, elapsed time.Duration) {
	return s.requests.Load(), r.cache.clock.Now() - time.Duration(s.countedFrom.Load())
}

// remember adds a filled entry to the hot entries if it was hot since its last fill, and
// resets its count of requests.
func (r *refresher) remember(s *slot, list changefeed.List, fill Fill) {
	if isHot(r.popularity(s)) {
		fill.Queried = nil
		r.add(&hotEntry{slot: weak.Make(s), list: list, fill: fill})
	}
	s.requests.Store(0)
	s.countedFrom.Store(int64(r.cache.clock.Now()))
}

// add adds an entry to the hot entries of its list. It replaces one of the same slot.
func (r *refresher) add(e *hotEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hot, known := r.hot[e.list]
	if !known && len(r.hot) == maxHotLists {
		for other := range r.hot { // any list: a list that does not change needs no refresh
			delete(r.hot, other)
			break
		}
	}
	hot = slices.DeleteFunc(hot, func(o *hotEntry) bool { return o.slot == e.slot || o.slot.Value() == nil })
	if len(hot) == maxHotEntries {
		hot = slices.Delete(hot, 0, 1)
	}
	r.hot[e.list] = append(hot, e)
}

func (r *refresher) remove(e *hotEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hot := slices.DeleteFunc(r.hot[e.list], func(o *hotEntry) bool { return o == e })
	if r.hot[e.list] = hot; len(hot) == 0 {
		delete(r.hot, e.list)
	}
}

// changed refreshes the hot entries that a transaction concerns.
func (r *refresher) changed(c *changefeed.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, list := range c.Lists {
		for _, e := range r.hot[list] {
			if !e.isConcernedBy(c, i) || !e.queued.CompareAndSwap(false, true) {
				continue
			}
			task := func() {
				e.queued.Store(false) // a later change queues the entry again
				r.refresh(e)
			}
			if !r.enqueue(task, &r.dropped) {
				e.queued.Store(false)
			}
		}
	}
}

// isConcernedBy reports whether a change may have changed the page, whose list is c.Lists[i].
func (e *hotEntry) isConcernedBy(c *changefeed.Change, i int) bool {
	s := e.slot.Value()
	return s == nil || s.entry.Load().Extent.Concern(c.RowsOf(i)) != freshness.Unconcerned
}

// refresh fills the entry if it is still hot.
func (r *refresher) refresh(e *hotEntry) {
	s := e.slot.Value()
	if s == nil {
		r.remove(e)
		return
	}
	switch requests, elapsed := r.popularity(s); {
	case isHot(requests, elapsed):
		r.refreshed.Add(1)
		r.find(s.key, e.list, e.fill)
	case requests > 0 || elapsed > coolAfter:
		r.remove(e)
	}
}

// find waits for the entry's flight, or runs one. It ignores an error: the next request
// tries again and reports it.
func (r *refresher) find(key []byte, list changefeed.List, fill Fill) {
	l := &lookup{Cache: r.cache, key: key, list: list, fill: fill}
	_, _ = r.cache.flights.do(string(key), l.find)
}

// retryUntilVisible queues retries for a hot entry that was read before a change became
// visible. It does so once for each change, because a change may stay invisible for
// long. It returns false if it queued nothing.
func (r *refresher) retryUntilVisible(key []byte, list changefeed.List, e *Entry, fill Fill) bool {
	c := r.cache
	s := c.memory.get(key)
	if s == nil || !isHot(r.popularity(s)) || !c.tracker.AwaitsVisibility(&e.Validity) {
		return false
	}
	if change := e.Missed(); s.retriedFor.Swap(change) == change {
		return false
	}
	fill.Queried = nil
	return r.enqueue(func() { r.retry(s, &lookup{Cache: c, key: key, list: list, fill: fill}) }, &r.dropped)
}

// retry fills the entry, which this node has claimed, until it is admitted.
func (r *refresher) retry(s *slot, l *lookup) {
	c := r.cache
	defer c.release(l.key)
	for _, wait := range visibilityWaits {
		select {
		case <-c.ctx.Done():
			return
		case <-time.After(wait):
		}
		if e := s.entry.Load(); e.Admitted() && c.tracker.IsFresh(&e.Validity, c.clock.Now()) {
			return
		}
		r.refreshed.Add(1)
		if _, err := c.flights.do(string(l.key), l.fillAnew); err != nil {
			return
		}
	}
}

// PrefetchNext fills the key's entry in the background: the next page of a client
// that walks through a list. It does nothing if the entry is fresh in memory, has a
// flight, or can be joined. It does nothing while the queue is half full, because hot
// entries are more urgent. The page after it is prefetched only when this one is
// requested, so a client that stops has cost one query. It returns true if the entry is
// going to be filled, and does not keep key.
func (c *Cache) PrefetchNext(key []byte, list changefeed.List, fill Fill) (begun bool) {
	if !c.enter() {
		return false
	}
	defer c.running.Done()
	r := c.refresher
	if _, ok := c.checkMemory(c.memory.get(key)); ok || c.flights.has(key) {
		return false
	}
	if _, _, ok := c.findParts(fill.Place, new(freshness.Validity)); ok { // joining costs no query
		return false
	}
	if len(r.tasks) >= refreshQueue/2 {
		r.prefetchesDropped.Add(1)
		return false
	}
	key = bytes.Clone(key)
	return r.enqueue(func() { r.prefetch(key, list, fill) }, &r.prefetchesDropped)
}

func (r *refresher) prefetch(key []byte, list changefeed.List, fill Fill) {
	if _, ok := r.cache.checkMemory(r.cache.memory.get(key)); !ok {
		r.prefetched.Add(1)
		r.find(key, list, fill)
	}
}
