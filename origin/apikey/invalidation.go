package apikey

import (
	"slices"
	"time"
	"unique"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

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

// invalidate forces a look-up before a request relies on the entry. It keeps the moment
// as of which the entry was right, for requests while Postgres cannot be reached.
// entriesMu is locked.
func (c *Cache[T]) invalidate(e *Entry[T]) {
	at, changed := c.validAt(e)
	if !changed {
		e.changedSince.Store(int64(c.changedAt))
	}
	e.invalidatedAt.Store(int64(c.changedAt))
	e.validatedAt.Store(int64(at))
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
	all := change.Touches(lists.Keys)
	if !all && !slices.ContainsFunc(change.Lists, func(l changefeed.List) bool { return l.Collection == lists.Keys }) {
		return
	}
	c.entriesMu.Lock()
	defer c.entriesMu.Unlock()
	c.changedAt = c.clock.Now()
	if all {
		for _, e := range c.entries {
			c.invalidate(e)
		}
	}
	for _, l := range change.Lists {
		if l.Collection == lists.Keys {
			for _, e := range c.rows[l.Workspace] {
				c.invalidate(e)
			}
		}
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
