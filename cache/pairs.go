package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"listedge/stream"
)

// tracker is what a node knows of the changes in the database: how far it has
// read the log, what each pair's latest changes were, and up to which moment
// it has seen everything.
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
//     end, might not see.
type tracker struct {
	bound time.Duration // how long a proof is good for
	fill  time.Duration // the longest permitted fill
	start time.Time     // moments are distances from it

	trustedUntil atomic.Int64  // nanoseconds
	proof        atomic.Int64  // nanoseconds; the moment the last proof is about
	join         atomic.Uint64 // sequence from which this node knows all changes

	mu       sync.Mutex // guards all below, and the pair states
	epoch    string
	read     bool            // an entry of the epoch has been read
	joinedAt stream.Position // the first one
	position stream.Position // the last one
	joined   bool            // proven since
	sequence uint64          // of the last entry applied; never goes back
	pairs    map[stream.Pair]*pairState
	whole    [stream.Collections]*pairState
	open     map[*pairState]struct{}  // those with a ring
	sent     map[uint64]time.Duration // nonces not yet echoed
	resyncs  [resyncCauses]uint64
}

// pairState is what changed a pair, or a whole collection, of late.
type pairState struct {
	last atomic.Uint64 // sequence of the last change

	lastPosition stream.Position
	ring         []ringEntry
	pruned       uint64          // the highest sequence that left the ring
	prunedAt     stream.Position // and its position
}

// ringEntry is one change that fills may not have seen.
type ringEntry struct {
	xid       uint64
	sequence  uint64
	position  stream.Position
	settled   bool          // a heartbeat's snapshot saw it
	settledAt time.Duration // when
}

type resyncCause uint8

const (
	resyncJoin resyncCause = iota
	resyncEpoch
	resyncGap
	resyncCauses
)

func (c resyncCause) String() string { return [...]string{"join", "epoch", "gap"}[c] }

func newTracker(bound, fill time.Duration) *tracker {
	t := &tracker{bound: bound, fill: fill, start: time.Now()}
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
	t.position, t.joinedAt = stream.Position{}, stream.Position{}
	t.pairs = map[stream.Pair]*pairState{}
	t.open = map[*pairState]struct{}{}
	t.sent = map[uint64]time.Duration{}
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
func (t *tracker) at() (epoch string, after stream.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epoch, t.position
}

// probe remembers that the nonce is chosen at this moment.
func (t *tracker) probe(nonce uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent[nonce] = time.Since(t.start)
	for old, at := range t.sent { // never echoed: lost
		if at < t.sent[nonce]-time.Minute {
			delete(t.sent, old)
		}
	}
}

// apply takes the next entry of the epoch's log. keys is called for changes of
// keys and workspaces. It returns false when the node had to begin anew: with
// this entry, for what is missing before it will not come.
func (t *tracker) apply(epoch, node string, e stream.Entry, keys func(stream.Change)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if epoch != t.epoch {
		return false
	}
	gap := t.read && !follows(t.position, e)
	if gap {
		t.resync(epoch, resyncGap)
	}
	if !t.read {
		t.read, t.joinedAt = true, e.Position
	}
	t.position = e.Position
	t.sequence++
	switch {
	case e.Change != nil:
		t.change(e.Change, e.Position)
		if e.Change.Touches(stream.Keys) || touchesKeys(e.Change) {
			keys(*e.Change)
		}
	case e.Heartbeat != nil:
		t.heartbeat(node, e.Heartbeat)
	}
	return !gap
}

// follows says whether nothing lies between the position and the entry.
func follows(p stream.Position, e stream.Entry) bool {
	if e.Position.Term == p.Term {
		return e.Position.N == p.N+1
	}
	return e.Take != nil && e.Take.Previous == p
}

func touchesKeys(c *stream.Change) bool {
	for _, p := range c.Pairs {
		if p.Collection == stream.Keys {
			return true
		}
	}
	return false
}

// change enters a transaction into the rings of what it touched.
func (t *tracker) change(c *stream.Change, at stream.Position) {
	for collection := range stream.Collections {
		if c.Touches(collection) {
			t.enter(t.whole[collection], c, at)
		}
	}
	for _, p := range c.Pairs {
		t.enter(t.pair(p), c, at)
	}
}

func (t *tracker) enter(p *pairState, c *stream.Change, at stream.Position) {
	p.lastPosition = at
	p.ring = append(p.ring, ringEntry{xid: c.XID, sequence: t.sequence, position: at})
	p.last.Store(t.sequence)
	t.open[p] = struct{}{}
}

func (t *tracker) pair(p stream.Pair) *pairState {
	state := t.pairs[p]
	if state == nil {
		state = &pairState{}
		t.pairs[p] = state
	}
	return state
}

// heartbeat settles what its snapshot saw, and proves, when it echoes one of
// the node's nonces.
func (t *tracker) heartbeat(node string, h *stream.Heartbeat) {
	snapshot, err := stream.ParseSnapshot(h.Snapshot)
	if err != nil {
		return // proves nothing
	}
	now := time.Since(t.start)
	for p := range t.open {
		kept := p.ring[:0]
		for _, e := range p.ring {
			if !e.settled && snapshot.Sees(e.xid) {
				e.settled, e.settledAt = true, now
			}
			if e.settled && now-e.settledAt > t.fill {
				p.pruned = max(p.pruned, e.sequence)
				if e.position.Compare(p.prunedAt) > 0 {
					p.prunedAt = e.position
				}
				continue
			}
			kept = append(kept, e)
		}
		if p.ring = kept; len(kept) == 0 {
			delete(t.open, p)
		}
	}
	sentAt, ours := t.sent[h.Nonces[node]]
	if !ours {
		return
	}
	if !t.joined {
		t.joined = true
		for i := range h.Unsettled { // committed before the log's first entry, perhaps
			t.change(&h.Unsettled[i], t.position)
		}
	}
	for nonce, at := range t.sent {
		if at <= sentAt {
			delete(t.sent, nonce)
		}
	}
	if sentAt > time.Duration(t.proof.Load()) {
		t.proof.Store(int64(sentAt))
	}
	t.trustedUntil.Store(int64(time.Duration(t.proof.Load()) + t.bound))
}

// trusted says whether everything visible bound ago has been applied here.
func (t *tracker) trusted(now time.Time) bool {
	return int64(now.Sub(t.start)) < t.trustedUntil.Load()
}

// stands says whether nothing has touched what the page shows since it was
// known to be right. Together with trusted: rule 1, no lock.
func (t *tracker) stands(p *Page) bool {
	s := p.sequence.Load()
	return s >= t.join.Load() && p.pair != nil && s >= p.pair.last.Load() && s >= p.whole.last.Load()
}

// revalidate is rule 2: all that has touched the page's pair since is in the
// rings, and was seen by the page's own statement. Then the page is as good as
// new.
func (t *tracker) revalidate(p *Page) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := p.sequence.Load()
	if s < t.join.Load() || p.pair == nil || !p.pair.seenSince(s, p) || !p.whole.seenSince(s, p) {
		return false
	}
	p.sequence.Store(t.sequence)
	return true
}

func (state *pairState) seenSince(s uint64, p *Page) bool {
	if s < state.pruned {
		return false
	}
	for _, e := range state.ring {
		if e.sequence > s && !p.Snapshot.Sees(e.xid) {
			return false
		}
	}
	return true
}

// adopt is the same test for a page from Redis, which brings its position in
// the log along; a page that passes stands here from now on.
func (t *tracker) adopt(p *Page, pair stream.Pair) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.joined || p.Epoch != t.epoch || p.Position.Compare(t.joinedAt) < 0 {
		return false
	}
	state, whole := t.pair(pair), t.whole[pair.Collection]
	for _, ps := range []*pairState{state, whole} {
		if p.Position.Compare(ps.prunedAt) < 0 {
			return false
		}
		for _, e := range ps.ring {
			if e.position.Compare(p.Position) > 0 && !p.Snapshot.Sees(e.xid) {
				return false
			}
		}
	}
	p.pair, p.whole = state, whole
	p.sequence.Store(t.sequence)
	return true
}

// fillStart is what is remembered when a fill begins.
type fillStart struct {
	at   time.Time
	join uint64
	ok   bool // what it reads may be kept
}

func (t *tracker) begin() fillStart {
	now := time.Now()
	return fillStart{at: now, join: t.join.Load(), ok: t.trusted(now)}
}

// accept decides whether a page that was just read may be kept: if its
// statement saw every change that is known here and that it might have missed.
func (t *tracker) accept(start fillStart, p *Page, pair stream.Pair) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !start.ok || start.join != t.join.Load() || time.Since(start.at) > t.fill {
		return false
	}
	state, whole := t.pair(pair), t.whole[pair.Collection]
	p.pair, p.whole = state, whole
	for _, ps := range []*pairState{state, whole} {
		for _, e := range ps.ring {
			if !p.Snapshot.Sees(e.xid) {
				return false
			}
		}
	}
	p.Epoch, p.Position = t.epoch, t.position
	p.sequence.Store(t.sequence)
	return true
}

// awaited says whether the page was read while a change of its pair was
// published and not yet visible, and still is not.
func (t *tracker) awaited(p *Page) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return p.pair != nil && p.sequence.Load() == 0 && (p.pair.unsettled() || p.whole.unsettled())
}

func (state *pairState) unsettled() bool {
	for _, e := range state.ring {
		if !e.settled {
			return true
		}
	}
	return false
}

// age is how long ago the page is known to have equalled the database.
func (t *tracker) age(p *Page, now time.Time) time.Duration {
	if t.stands(p) {
		if proven := now.Sub(t.start) - time.Duration(t.proof.Load()); proven >= 0 && proven < now.Sub(p.Proof) {
			return proven
		}
	}
	return max(0, now.Sub(p.Proof))
}
