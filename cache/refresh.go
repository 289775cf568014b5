package cache

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"listedge/internal/changefeed"
)

// ahead reads pages before their next readers ask for them: a page that many
// ask for, and that a change has just made stale, is fetched once in the
// background. So a change costs a hot list one query and no reader a wait.
//
//	fill ── asked for often ──► remember ──► the pair's list of hot pages
//	log ── change ──► changed ──► queue ──► worker ── still asked for ──► flight
//
// The budget is the workers: so many queries at once, on top of those that
// requests cause, and what does not fit into the queue waits for its reader.
type ahead struct {
	cache *Cache
	queue chan func()
	ended sync.WaitGroup

	done, dropped         atomic.Uint64
	nextDone, nextDropped atomic.Uint64
}

// hotEntry is a page worth reading ahead. It does not keep the page from being
// evicted.
type hotEntry struct {
	holder weak.Pointer[holder]
	pair   changefeed.List
	fill   Fill
	queued *atomic.Bool // it is on its way already
}

const (
	aheadWorkers = 4
	aheadQueue   = 256
	// hotRate is how many times a second a page is asked for, at least, to be
	// read ahead.
	hotRate = 4
	// hotPages is how many of a pair's pages are read ahead.
	hotPages = 16
	// coolAfter is how long a page may not be asked for before it is no longer
	// read ahead.
	coolAfter = time.Second
)

// aheadPauses: a change is told before new snapshots see it, mostly by less
// than a millisecond; one that waits for a synchronous standby is not awaited.
var aheadPauses = [...]time.Duration{time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond, 8 * time.Millisecond, 16 * time.Millisecond}

// isHot says whether a page that was asked for so many times in so long is
// worth a query of its own. It is never read more often than it is asked for.
func isHot(asked uint64, elapsed time.Duration) bool {
	return asked > 0 && float64(asked) >= hotRate*elapsed.Seconds()
}

func startAhead(c *Cache) *ahead {
	a := &ahead{cache: c, queue: make(chan func(), aheadQueue)}
	for range aheadWorkers {
		a.ended.Go(a.work)
	}
	return a
}

// close waits for the workers, which end with the cache's context.
func (a *ahead) close() { a.ended.Wait() }

// heat is how often the page was asked for since it was last read, and for how
// long that is.
func (a *ahead) heat(h *holder) (asked uint64, elapsed time.Duration) {
	return h.asked.Load(), time.Since(a.cache.start) - time.Duration(h.since.Load())
}

// remember puts the page on its pair's list if it was hot in the life that now
// ends, and begins to count anew.
func (a *ahead) remember(h *holder, pair changefeed.List, p *Entry, fill Fill) {
	if isHot(a.heat(h)) {
		a.cache.follow.list(p.pair, hotEntry{holder: weak.Make(h), pair: pair, fill: fill, queued: new(atomic.Bool)})
	}
	h.asked.Store(0)
	h.since.Store(int64(time.Since(a.cache.start)))
}

// list adds a page to those to be read ahead, in place of what it had there.
func (t *tracker) list(state *pairState, e hotEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state.hot = slices.DeleteFunc(state.hot, func(o hotEntry) bool { return o.holder == e.holder || o.holder.Value() == nil })
	if len(state.hot) == hotPages {
		state.hot = slices.Delete(state.hot, 0, 1)
	}
	state.hot = append(state.hot, e)
}

// unlist takes it off.
func (t *tracker) unlist(e hotEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.pairs.known[e.pair]
	if state != nil {
		state.hot = slices.DeleteFunc(state.hot, func(o hotEntry) bool { return o.queued == e.queued })
	}
}

// changed is told of each change of a pair, under the tracker's lock.
func (a *ahead) changed(state *pairState) {
	for _, e := range state.hot {
		if !e.queued.CompareAndSwap(false, true) {
			continue
		}
		visit := func() {
			e.queued.Store(false) // a change from now on is a reason of its own
			a.visit(e)
		}
		if !a.offer(visit) {
			e.queued.Store(false)
			a.dropped.Add(1)
		}
	}
}

// again has a hot page, which was read too early for a change, read until it
// shows it; once for each change, which may stay invisible for long.
func (a *ahead) again(key []byte, pair changefeed.List, p *Entry, fill Fill) bool {
	h := a.cache.memory.get(key)
	if h == nil || !isHot(a.heat(h)) || !a.cache.follow.awaited(p) {
		return false
	}
	if change := p.lastChange(); h.insisted.Swap(change) == change {
		return false
	}
	held := weak.Make(h)
	offered := a.offer(func() {
		if h := held.Value(); h != nil {
			a.insist(h, pair, fill)
		}
	})
	if !offered {
		a.dropped.Add(1)
	}
	return offered
}

// offer has a worker do it, unless too much waits.
func (a *ahead) offer(do func()) bool {
	select {
	case a.queue <- do:
		return true
	default:
		return false
	}
}

func (a *ahead) work() {
	for {
		select {
		case <-a.cache.ctx.Done():
			return
		case do := <-a.queue:
			if a.cache.enter() {
				do()
				a.cache.running.Done()
			}
		}
	}
}

// visit reads the page if it is still asked for.
func (a *ahead) visit(e hotEntry) {
	c, h := a.cache, e.holder.Value()
	if h == nil {
		c.follow.unlist(e)
		return
	}
	switch asked, elapsed := a.heat(h); {
	case isHot(asked, elapsed):
		a.done.Add(1)
		a.fly(h.key, e.pair, e.fill)
	case asked > 0 || elapsed > coolAfter:
		c.follow.unlist(e)
	}
}

// fly joins the page's flight, or begins it. An error is the next reader's to
// see.
func (a *ahead) fly(key []byte, pair changefeed.List, fill Fill) {
	l := &lookUp{cache: a.cache, key: key, pair: pair, fill: fill}
	_, _ = a.cache.flights.do(string(key), l.whole)
}

// insist reads the page, which this node was to read for the fleet and read too
// early, until it shows the change.
func (a *ahead) insist(h *holder, pair changefeed.List, fill Fill) {
	c, key := a.cache, h.key
	for _, pause := range aheadPauses {
		select {
		case <-a.cache.ctx.Done():
			return
		case <-time.After(pause):
		}
		if p := h.page.Load(); p.stands() && c.judge(p, time.Now()) == fresh {
			break
		}
		a.done.Add(1)
		_, err := c.flights.do(string(key), func() (Result, error) {
			ctx, cancel := context.WithTimeout(c.ctx, c.options.FillTimeout)
			defer cancel()
			return c.read(ctx, key, pair, nil, Origin, fill)
		})
		if err != nil {
			break
		}
	}
	c.release(key)
}
