package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

// tracker is what a node knows of the changes in the database: how far it has
// read the log, what each pair's latest changes were, and up to which moment
// it has seen everything. This file feeds it; rules.go asks it.
//
// Positions of the log are compared under the lock. For pages in memory each
// applied entry also has a local number, its sequence, so that serving one
// compares three integers and takes no lock.
//
// Invariants:
//   - trustedUntil − bound is a moment before which every visible commit has
//     been applied here;
//   - a page whose sequence is s equals what the database showed once entry s
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
	lastServer string              // the last server that anything was proven of; a resync does not forget it
	read       bool                // an entry of the epoch has been read
	joinedAt   changefeed.Position // the first one
	joinLSN    uint64              // of the heartbeat that proved first
	position   changefeed.Position // the last one
	joined     bool                // proven since
	sequence   uint64              // of the last entry applied; never goes back
	pairs      pairs
	whole      [changefeed.Collections]*pairState
	open       map[*pairState]struct{} // those with a ring
	sent       changefeed.Probes
	resyncs    [resyncCauses]uint64
	lag        lag

	changed func(*pairState) // told of each change, under the lock
}

type resyncCause uint8

const (
	resyncJoin resyncCause = iota
	resyncEpoch
	resyncGap
	resyncUndecodable
	resyncCauses
)

func (c resyncCause) String() string { return [...]string{"join", "epoch", "gap", "undecodable"}[c] }

func newTracker(bound, fill time.Duration, c *boottime.Clock) *tracker {
	t := &tracker{bound: bound, fill: fill, most: mostPairs, start: time.Now(), clock: c, changed: func(*pairState) {}}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resync("", resyncJoin)
	return t
}

// resync forgets everything: the node begins anew at the oldest entry of the
// epoch's log, and no page it has is fresh any more.
func (t *tracker) resync(epoch string, cause resyncCause) {
	t.resyncs[cause]++
	t.trustedUntil.Store(0)
	t.sequence++
	t.join.Store(t.sequence)
	t.epoch, t.read, t.joined = epoch, false, false
	t.position, t.joinedAt = changefeed.Position{}, changefeed.Position{}
	t.server, t.run, t.joinLSN = "", "", 0
	t.pairs = pairs{known: map[changefeed.List]*pairState{}}
	t.open = map[*pairState]struct{}{}
	t.sent.Forget()
	for i := range t.whole {
		t.whole[i] = &pairState{}
	}
}

// turnTo resyncs when the epoch is another one.
func (t *tracker) turnTo(epoch string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if epoch != t.epoch {
		cause := resyncEpoch
		if t.epoch == "" {
			cause = resyncJoin
		}
		t.resync(epoch, cause)
	}
}

// at returns what to read next.
func (t *tracker) at() (epoch string, after changefeed.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epoch, t.position
}

// probe remembers that the nonce is chosen at this moment.
func (t *tracker) probe(nonce uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent.Sent(nonce, time.Now())
}

// apply takes the next entry of the epoch's log. It returns false when the node
// had to begin anew: with this entry, for what is missing before it will not come.
func (t *tracker) apply(epoch, node string, e changefeed.Entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if epoch != t.epoch {
		return false
	}
	anew := true
	switch {
	case e.Undecodable(): // what it said is missing, and will not come either
		t.resync(epoch, resyncUndecodable)
	case t.read && !e.Follows(t.position):
		t.resync(epoch, resyncGap)
	default:
		anew = false
	}
	if !t.read {
		t.read, t.joinedAt = true, e.Position
	}
	t.position = e.Position
	t.sequence++
	switch {
	case e.Change != nil:
		if at := e.Change.CommittedAt; at != 0 {
			t.lag.observe(time.UnixMicro(at), time.Now())
		}
		t.change(e.Change, e.Position)
	case e.Heartbeat != nil:
		t.heartbeat(node, e.Heartbeat)
	}
	return !anew
}

// change enters a transaction into the rings of what it touched.
func (t *tracker) change(c *changefeed.Change, at changefeed.Position) {
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

// heartbeat settles what its snapshot saw, and proves, when it echoes one of
// the node's nonces.
func (t *tracker) heartbeat(node string, h *changefeed.Heartbeat) {
	snapshot, err := changefeed.ParseSnapshot(h.Snapshot)
	if err != nil {
		return // proves nothing
	}
	now := time.Since(t.start)
	for p := range t.open {
		if !p.settle(&snapshot, now, t.fill) {
			delete(t.open, p)
		}
	}
	t.pairs.forget(t.most)
	probed, ours := t.sent.Echoed(h.Nonces[node])
	if !ours {
		return
	}
	if !t.joined {
		t.joined, t.joinLSN = true, h.LSN
		for i := range h.Unsettled { // committed before the log's first entry, perhaps
			t.change(&h.Unsettled[i], t.position)
		}
	}
	t.server, t.run, t.lsn, t.lastServer = h.Server, h.Run, h.LSN, h.Server
	if sentAt := t.clock.Of(probed); sentAt >= time.Duration(t.proof.Load()) {
		t.proof.Store(int64(sentAt))
		t.provenAt = probed
	}
	t.trustedUntil.Store(int64(time.Duration(t.proof.Load()) + t.bound))
}
