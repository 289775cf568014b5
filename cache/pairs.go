package cache

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
)

// pairs are those that changed of late. Of all others it is known that none
// changed after a certain mark, which is how pairs can be forgotten.
type pairs struct {
	known  map[changefeed.List]*pairState
	others mark
}

// mostPairs bounds what is remembered, at some 200 bytes each.
const mostPairs = 1 << 17

// mark is a place in the log, in its three measures.
type mark struct {
	sequence uint64
	position changefeed.Position
	lsn      uint64
}

func (m *mark) rise(to mark) {
	m.sequence, m.lsn = max(m.sequence, to.sequence), max(m.lsn, to.lsn)
	if to.position.Compare(m.position) > 0 {
		m.position = to.position
	}
}

// pairState is what changed a pair, or a whole collection, of late.
type pairState struct {
	last atomic.Uint64 // sequence of the last change

	lastLSN uint64
	ring    []ringEntry
	pruned  mark       // nothing that left the ring came after it
	hot     []hotEntry // pages to be read ahead of their readers
}

// ringEntry is one change that fills may not have seen.
type ringEntry struct {
	mark
	xid       uint64
	settled   bool          // it is visible to every statement that begins now
	settledAt time.Duration // when
}

// of returns the pair's state, which from then on is remembered.
func (p *pairs) of(pair changefeed.List) *pairState {
	state := p.known[pair]
	if state == nil {
		state = &pairState{lastLSN: p.others.lsn, pruned: p.others}
		state.last.Store(p.others.sequence)
		p.known[pair] = state
	}
	return state
}

// forget makes room where more than most are known: it lets go the half whose
// last changes lie farthest back, but for those in whose ring something is
// left. Pages that hang on a forgotten state are read anew.
func (p *pairs) forget(most int) {
	if len(p.known) <= most {
		return
	}
	sample := make([]uint64, 0, 1000)
	for _, state := range p.known {
		if sample = append(sample, state.last.Load()); len(sample) == cap(sample) {
			break
		}
	}
	slices.Sort(sample)
	middle := sample[(len(sample)-1)/2]
	for pair, state := range p.known {
		if len(p.known) <= most/2 { // many have the same mark
			break
		}
		if len(state.ring) > 0 || state.last.Load() > middle {
			continue
		}
		last := state.pruned
		last.lsn = state.lastLSN
		p.others.rise(last)
		state.last.Store(math.MaxUint64)
		state.pruned.sequence = math.MaxUint64
		delete(p.known, pair)
	}
}

// enter adds a change.
func (state *pairState) enter(xid uint64, at mark) {
	state.lastLSN = max(state.lastLSN, at.lsn)
	state.ring = append(state.ring, ringEntry{mark: at, xid: xid})
	state.last.Store(at.sequence)
}

// settle notes that a change became visible.
func (state *pairState) settle(xid uint64, now time.Duration) {
	for i := len(state.ring) - 1; i >= 0; i-- { // most are among the last
		if e := &state.ring[i]; e.xid == xid && !e.settled {
			e.settled, e.settledAt = true, now
			return
		}
	}
}

// prune drops what every fill that may still end has seen. It returns whether
// anything is left.
func (state *pairState) prune(now, fill time.Duration) bool {
	kept := state.ring[:0]
	for _, e := range state.ring {
		if e.settled && now-e.settledAt > fill {
			state.pruned.rise(e.mark)
			continue
		}
		kept = append(kept, e)
	}
	state.ring = kept
	return len(kept) > 0
}

// unsettled says whether a change is published and not known to be visible.
func (state *pairState) unsettled() bool {
	return slices.ContainsFunc(state.ring, func(e ringEntry) bool { return !e.settled })
}

// shownSince says whether the page shows all that came after the sequence.
func (state *pairState) shownSince(s uint64, p *Entry) bool {
	if s < state.pruned.sequence {
		return false
	}
	for i := range state.ring {
		if e := &state.ring[i]; e.sequence > s && !p.View.shows(e) {
			return false
		}
	}
	return true
}

// shownAfter is the same for a position.
func (state *pairState) shownAfter(at changefeed.Position, p *Entry) bool {
	if at.Compare(state.pruned.position) < 0 {
		return false
	}
	for i := range state.ring {
		if e := &state.ring[i]; e.position.Compare(at) > 0 && !p.View.shows(e) {
			return false
		}
	}
	return true
}

// shown says whether the page shows all that is known.
func (state *pairState) shown(p *Entry) bool {
	if p.View.standby() {
		return p.View.LSN >= state.lastLSN
	}
	for i := range state.ring {
		if !p.View.shows(&state.ring[i]) {
			return false
		}
	}
	return true
}

// View is how much of the database a page's statement saw: on the primary what
// its snapshot sees, on a standby what had been replayed before the statement
// began. The one is not told by an LSN, because commits become visible in
// another order than they are in the WAL; the other not by a snapshot, because
// a standby's does not name the transactions that are running.
type View struct {
	Snapshot changefeed.Snapshot
	Run      string // of the primary: when it was started
	Server   string // of a standby: system and timeline it follows; empty = read from the primary
	LSN      uint64 // and how far
}

func (v *View) standby() bool { return v.Server != "" }

func (v *View) shows(e *ringEntry) bool {
	if v.standby() {
		return e.lsn <= v.LSN
	}
	return v.Snapshot.Sees(e.xid)
}
