package apikey

import (
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
)

// proof says that the log of changes is complete between two moments, for one
// run of the primary: an entry that was looked up after since, on that server,
// and that no change has invalidated, was right at until.
//
// Why that is enough. When until is proven, each change that became visible
// between since and until has been given to Settled (changefeed.Listener). Let
// a key be looked up after since, and let a change of it become visible after
// that look-up and before until. It settled after the look-up began, so it has
// invalidated the entry, or the result of the look-up in flight (store).
//
// An answer of another server, an old primary that still runs, is right as of
// its look-up only.
type proof struct {
	since, until time.Duration
	run          unique.Handle[string] // when the server was started; empty = a follower of an older version does not say
}

var anyRun = unique.Make("")

// recent says whether no entry in use is too old before the next refresh.
func (p *proof) recent(now time.Duration) bool { return p != nil && now-p.until <= refreshEvery }

// runAt is the run of the primary that is followed, while that is
// proven. An older proof must not refuse the answers of a restarted primary.
func (p *proof) runAt(now time.Duration) string {
	if p != nil && now-p.until < maxAge {
		return p.run.Value()
	}
	return ""
}

// invalidate has the key looked up before a request relies on it. While that
// cannot be done, the entry is as right as it was. The shard is locked.
func (c *Cache[T]) invalidate(e *Entry[T], now time.Duration) {
	at, _ := c.validAt(e)
	e.invalidatedAt.Store(int64(now))
	e.validatedAt.Store(int64(at))
}

// Changed implements changefeed.Listener.
func (c *Cache[T]) Changed(_ changefeed.Position, change *changefeed.Change) { c.Settled(change) }

// Settled implements changefeed.Listener. A look-up between Changed and Settled
// may have read the old row, so both invalidate.
func (c *Cache[T]) Settled(change *changefeed.Change) {
	all := change.Touches(changefeed.Keys)
	var ids []uuid.UUID
	for _, l := range change.Lists {
		if l.Collection == changefeed.Keys {
			ids = append(ids, l.Workspace)
		}
	}
	if !all && ids == nil {
		return
	}
	now := c.clock.Now()
	c.eachShard(func(s *shard[T]) {
		s.changedAt = now
		if all {
			for _, e := range s.entries {
				c.invalidate(e, now)
			}
			return
		}
		for _, id := range ids {
			for _, e := range s.rows[id] {
				c.invalidate(e, now)
			}
		}
	})
}

// ValidThrough implements changefeed.Listener. The first proof after a Reset
// covers the changes since it was read: a change that was not visible then is
// published after its heartbeat, or listed in it as unsettled.
func (c *Cache[T]) ValidThrough(p changefeed.Proof) {
	since := c.clock.Now()
	if before := c.proof.Load(); before != nil {
		since = before.since
	}
	c.proof.Store(&proof{since: since, until: c.clock.Of(p.Moment), run: unique.Make(p.Run)})
}

// Reset implements changefeed.Listener. Each entry stays right as of the moment
// that was proven.
func (c *Cache[T]) Reset(string, changefeed.ResetCause) {
	c.eachShard(func(s *shard[T]) {
		for _, e := range s.entries {
			at, _ := c.validAt(e)
			e.validatedAt.Store(int64(at))
		}
	})
	c.proof.Store(nil)
}

func (c *Cache[T]) eachShard(do func(*shard[T])) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		do(s)
		s.mu.Unlock()
	}
}
