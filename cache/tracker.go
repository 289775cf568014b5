package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

// tracker is what a node knows of the changes in the database: what each list's
// latest changes were, and up to which moment it has seen everything. It listens
// to the log (this file) and says what is fresh by it (rules.go).
//
// Positions of the log are compared under the lock. For pages in memory each
// change and each proof also has a local number, its sequence, so that serving
// one compares three integers and takes no lock.
//
// Invariants:
//   - trustedUntil − bound is a moment before which every visible commit has
//     been applied here;
//   - a page whose sequence is s equals what the database showed once change s
//     had been applied, or later;
//   - a ring holds every change that a snapshot, taken by a fill that may still
//     end, might not see;
//   - everything committed before the first entry that was read, or that the
//     heartbeat this node joined by does not call unsettled, lies below joinLSN.
type tracker struct {
	bound time.Duration // how long a proof is good for
	fill  time.Duration // the longest permitted fill
	most  int           // pairs remembered
	start time.Time     // of the rings' times: fills, too, are measured awake
	clock *boottime.Clock

	trustedUntil atomic.Int64  // a moment of the clock, in nanoseconds
	proof        atomic.Int64  // likewise: the moment the last proof is about
	join         atomic.Uint64 // sequence from which this node knows all changes

	mu         sync.Mutex // guards all below, and the pair states
	epoch      string
	provenAt   time.Time           // the reading of proof
	server     string              // system and timeline of the primary
	run        string              // when it was started
	lsn        uint64              // where its WAL ended at the moment of the last proof, or later
	lastServer string              // the last server that anything was proven of; a reset does not forget it
	joinedAt   changefeed.Position // the first entry of the epoch that was read
	joinLSN    uint64              // of the heartbeat that proved first
	position   changefeed.Position // of the last change or proof
	joined     bool                // proven since the last reset
	sequence   uint64              // of the last change or proof; never goes back
	pairs      pairs
	whole      [changefeed.Collections]*pairState
	open       map[*pairState]struct{} // those with a ring
	lag        lag

	changed func(*pairState) // is given each change, under the lock
}

func newTracker(bound, fill time.Duration, c *boottime.Clock) *tracker {
	t := &tracker{bound: bound, fill: fill, most: mostPairs, start: time.Now(), clock: c, changed: func(*pairState) {}}
	t.Reset("", changefeed.ResetJoin)
	return t
}

// Reset implements changefeed.Listener: no page that the node has is fresh any more.
func (t *tracker) Reset(epoch string, _ changefeed.ResetCause) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trustedUntil.Store(0)
	t.sequence++
	t.join.Store(t.sequence)
	t.epoch, t.joined = epoch, false
	t.position, t.joinedAt = changefeed.Position{}, changefeed.Position{}
	t.server, t.run, t.joinLSN = "", "", 0
	t.pairs = pairs{known: map[changefeed.List]*pairState{}}
	t.open = map[*pairState]struct{}{}
	for i := range t.whole {
		t.whole[i] = &pairState{}
	}
}

// Changed implements changefeed.Listener: it enters a transaction into the rings
// of what it touched.
func (t *tracker) Changed(at changefeed.Position, c *changefeed.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence++
	t.position = at
	if c.CommittedAt != 0 && t.joined { // else it may have waited in the log for long
		t.lag.observe(time.UnixMicro(c.CommittedAt), time.Now())
	}
	m := mark{t.sequence, at, c.LSN}
	for collection := range changefeed.Collections {
		if c.Touches(collection) {
			t.enter(t.whole[collection], c.XID, m)
		}
	}
	for _, p := range c.Lists {
		if p.Collection != changefeed.Keys { // of which no page is made
			t.enter(t.pairs.of(p), c.XID, m)
		}
	}
}

func (t *tracker) enter(p *pairState, xid uint64, at mark) {
	p.enter(xid, at)
	t.open[p] = struct{}{}
	t.changed(p)
}

// Settled implements changefeed.Listener.
func (t *tracker) Settled(c *changefeed.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	for collection := range changefeed.Collections {
		if c.Touches(collection) {
			t.whole[collection].settle(c.XID, now)
		}
	}
	for _, p := range c.Lists {
		if state := t.pairs.known[p]; state != nil {
			state.settle(c.XID, now)
		}
	}
}

// ValidThrough implements changefeed.Listener.
func (t *tracker) ValidThrough(p changefeed.Proof) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	for state := range t.open {
		if !state.prune(now, t.fill) {
			delete(t.open, state)
		}
	}
	t.pairs.forget(t.most)
	t.sequence++
	t.position = p.At
	if !t.joined {
		t.joined, t.joinLSN, t.joinedAt = true, p.LSN, p.First
	}
	t.server, t.run, t.lsn, t.lastServer = p.Server, p.Run, p.LSN, p.Server
	if moment := t.clock.Of(p.Moment); moment >= time.Duration(t.proof.Load()) {
		t.proof.Store(int64(moment))
		t.provenAt = p.Moment
	}
	t.trustedUntil.Store(int64(time.Duration(t.proof.Load()) + t.bound))
}
