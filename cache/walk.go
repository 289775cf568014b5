package cache

import (
	"bytes"

	"listedge/internal/changefeed"
)

// A walk is a client that asks for page after page of a list. Of a list that
// nobody has walked of late each page would be a miss; so the page after the
// one that a walk has reached is read while the client is busy with that one.
//
//	answer with a cursor ── first of its page ──► PrefetchNext ──► ahead's queue ──► worker ──► flight
//
// One page ahead and no more: what is read here leads no further until somebody
// asks for it, so a client that stops has cost one page. The budget is ahead's,
// and of its queue walks may fill one half: they can wait, a hot page cannot.

// ClaimNextPrefetch says, to the first who asks and to nobody else, that the page after
// this one may be worth reading ahead.
func (p *Entry) ClaimNextPrefetch() bool {
	return p.Next != "" && !p.led.Load() && p.led.CompareAndSwap(false, true)
}

// PrefetchNext has the key's page read in the background, unless it is in memory,
// on its way there, or too much else is to be read. It keeps neither key nor the
// caller waiting, and says whether the page is going to be read.
func (c *Cache) PrefetchNext(key []byte, pair changefeed.List, fill Fill) (begun bool) {
	if _, ok := c.recall(c.memory.get(key)); ok || c.flights.flying(key) {
		return false // to find that out, a worker would have to be woken
	}
	a, owned := c.ahead, bytes.Clone(key)
	if len(a.queue) >= aheadQueue/2 || !a.offer(func() { a.step(owned, pair, fill) }) {
		a.nextDropped.Add(1)
		return false
	}
	return true
}

// step reads the next page of a walk.
func (a *ahead) step(key []byte, pair changefeed.List, fill Fill) {
	if _, ok := a.cache.recall(a.cache.memory.get(key)); ok {
		return
	}
	a.nextDone.Add(1)
	a.fly(key, pair, fill)
}
