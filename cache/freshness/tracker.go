// Package freshness decides whether an entry of the cache equals the database.
// It receives every change in the order of the log, and proofs: a proof says that
// the node has applied all changes that were visible at a moment. An entry is fresh
// if the last proof is young enough and the entry's statement saw every change of its
// list, or those that it did not see do not concern its page. docs/DECISIONS.md has the
// reasoning.
//
//	log ──► Changed, Settled, ValidThrough, Reset ──► Tracker: changes of each list, proof
//	                                                     │
//	fill ──► Begin … Admit ──────────────────────────────┤ may the entry be stored?
//	memory ──► IsFresh, Age ─────────────────────────────┤ may it be served?
//	redis ──► ValidateFromRedis ─────────────────────────┘ is another node's entry current here?
//
// Each time an entry is judged, it is compared with the changes that are newer than its
// sequence. So the cost of applying a change does not depend on the number of pages:
//
//	changes of the list   ──┬────┬─────┬────┬────┬──►  sequence
//	                        │    │     │    │    │
//	entry: its sequence ─────────┘     does its statement see them, or do their rows
//	                                   not concern its extent? Then its sequence rises.
//
//	extent: the rows behind After up to End, which match the filter and the search
//
//	the list   ───────[═══════════════════════]──────
//	                After   rows 1 … L, L+1 = End
//
// The package has no I/O, no goroutine and no clock. A moment is a distance from
// the start of the node's boot clock, and is passed in.
package freshness

import (
	"sync"
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// Tracker holds what a node knows about changes in the database.
//
// Positions of the log are compared under the lock. For entries in memory each
// change and each proof also has a local number, the sequence, so that serving
// an entry compares three integers and takes no lock.
//
// Invariants:
//   - every commit that was visible before trustedUntil − bound has been applied;
//   - an entry with sequence s equals what the database showed once change s had
//     been applied, or later;
//   - every commit from before the first entry of the log that was read has an LSN
//     below joinLSN, except those that the first proof names as unsettled.
type Tracker struct {
	bound       time.Duration // how long a proof is trusted
	fillTimeout time.Duration // a fill that takes longer is not stored
	maxLists    int
	ringBudget  int // bytes
	database    *changefeed.Followed

	trustedUntil atomic.Int64  // the moment at which the last proof becomes too old
	proof        atomic.Int64  // the moment of the last proof
	join         atomic.Uint64 // the sequence from which on this node knows all changes

	compared [Concerns]atomic.Uint64 // comparisons of entries with newer changes, by outcome

	// mu guards the fields below, and the list versions. The log locks it for writing,
	// which takes less than a microsecond a change. Requests lock it for reading while
	// they compare an entry with up to maxRows rows.
	mu          sync.RWMutex
	epoch       string
	joined      bool                // there was a proof since the last reset
	joinedAt    changefeed.Position // of the first entry of the epoch's log that was read
	joinLSN     uint64              // of the first proof since the last reset
	sequence    uint64              // of the last change, proof or reset; never decreases
	position    changefeed.Position // of the last change or proof
	last        changefeed.Proof    // the last proof since the last reset; zero = none
	provenAt    time.Time           // the moment of the last proof, as a time.Time
	pruned      time.Duration       // the latest moment at which changes stopped being recent
	lastServer  string              // of the last proof, also before a reset
	lists       listVersions
	collections [lists.Collections]*listVersion // changes of a collection as a whole
	changing    map[*listVersion]struct{}       // list versions with recent changes
	changed     uint64                          // changes of lists since the start
}

// NewTracker makes a tracker without a proof. database is the followed database.
func NewTracker(bound, fillTimeout time.Duration, database *changefeed.Followed) *Tracker {
	t := &Tracker{bound: bound, fillTimeout: fillTimeout, maxLists: maxLists, ringBudget: ringBudget, database: database}
	t.Reset("")
	return t
}

// Reset forgets everything: no entry that the node has is current any more.
func (t *Tracker) Reset(epoch string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trustedUntil.Store(0)
	t.sequence++
	t.join.Store(t.sequence)
	t.epoch, t.joined, t.last = epoch, false, changefeed.Proof{}
	t.position, t.joinedAt, t.joinLSN = changefeed.Position{}, changefeed.Position{}, 0
	t.lists = listVersions{known: map[changefeed.List]*listVersion{}, ring: ring{budget: t.ringBudget}}
	t.changing = map[*listVersion]struct{}{}
	for i := range t.collections {
		t.collections[i] = &listVersion{}
	}
}

// Changed adds a transaction to the changes of each list that it changed. joined is false
// before the first proof: then the transaction may have been in the log for long.
func (t *Tracker) Changed(at changefeed.Position, c *changefeed.Change) (joined bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence++
	t.position = at
	for i, list := range c.Lists {
		if list.Collection != lists.Keys {
			t.add(t.lists.of(list), c, c.RowsOf(i))
		}
	}
	for _, collection := range lists.All {
		if c.Touches(collection) {
			t.add(t.collections[collection], c, nil)
		}
	}
	return t.joined
}

// add adds a transaction to the changes of one list or collection.
func (t *Tracker) add(v *listVersion, c *changefeed.Change, rows []lists.Row) {
	added := &change{logPosition: logPosition{t.sequence, t.position, c.LSN}, xid: c.XID, committedAt: c.CommittedAt,
		settledAt: notYet, rowCount: uint32(len(rows)), rows: rows}
	v.add(added)
	t.lists.ring.add(added)
	t.changing[v] = struct{}{}
	t.changed++
}

// Settled notes that a transaction is visible from now on.
func (t *Tracker) Settled(c *changefeed.Change, now time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, list := range c.Lists {
		if v := t.lists.known[list]; v != nil {
			v.settle(c.XID, now)
		}
	}
	for _, collection := range lists.All {
		if c.Touches(collection) {
			t.collections[collection].settle(c.XID, now)
		}
	}
}

// ValidThrough notes a proof. moment is the proof's, on the clock of now.
func (t *Tracker) ValidThrough(p changefeed.Proof, moment, now time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pruned = max(t.pruned, now)
	for v := range t.changing {
		if !v.prune(now, t.fillTimeout) {
			delete(t.changing, v)
		}
	}
	t.lists.forget(t.maxLists)
	t.sequence++
	t.position = p.At
	if !t.joined {
		t.joined, t.joinLSN, t.joinedAt = true, p.LSN, p.First
	}
	t.last, t.lastServer = p, p.Server
	if moment >= time.Duration(t.proof.Load()) {
		t.proof.Store(int64(moment))
		t.provenAt = p.Moment
	}
	t.trustedUntil.Store(t.proof.Load() + int64(t.bound))
}

// Primary returns the primary of the last proof. server is its system and timeline. run
// is when it was started; empty = the last proof is too old.
func (t *Tracker) Primary(now time.Duration) (server, run string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.Trusted(now) {
		run = t.last.Run
	}
	return t.lastServer, run
}

// Stats are a tracker's numbers.
type Stats struct {
	Proof       time.Duration    // the moment of the last proof
	Lists       int              // lists that changed recently
	Changes     uint64           // a transaction counts once for each list that it changed
	Compared    [Concerns]uint64 // comparisons of entries with newer changes, by outcome
	RingChanges int              // the number of remembered changes
	RingBytes   int              // the memory that they occupy
}

// Stats returns the current numbers.
func (t *Tracker) Stats() Stats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := Stats{Proof: time.Duration(t.proof.Load()), Lists: len(t.lists.known), Changes: t.changed,
		RingChanges: t.lists.ring.changes, RingBytes: t.lists.ring.bytes}
	for c := range s.Compared {
		s.Compared[c] = t.compared[c].Load()
	}
	return s
}
