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
// Each time an entry is asked about, it is compared with the changes that are newer
// than what it is known to show, so a change costs the same however many pages there
// are:
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
//   - everything committed before the first entry of the log that was read lies
//     below joinLSN, except what the first proof calls unsettled.
type Tracker struct {
	bound       time.Duration // how long a proof is good for
	fillTimeout time.Duration // a fill that takes longer is not stored
	maxLists    int
	ringBudget  int // bytes
	database    *changefeed.Followed

	trustedUntil atomic.Int64  // a moment
	proof        atomic.Int64  // the moment that the last proof is about
	join         atomic.Uint64 // sequence since which this node knows all changes

	compared [Concerns]atomic.Uint64 // entries whose list had changed since, by outcome

	// mu guards all below, and the list versions. The log locks it for writing, which
	// takes less than a microsecond a change; requests lock it for reading, for as long
	// as they compare an entry with up to maxRows rows.
	mu          sync.RWMutex
	epoch       string
	joined      bool                // something was proven since the last reset
	joinedAt    changefeed.Position // of the first entry of the epoch's log that was read
	joinLSN     uint64              // of the first proof
	sequence    uint64              // of the last change or proof; never goes back
	position    changefeed.Position // likewise
	last        changefeed.Proof    // since the last reset; zero = none
	provenAt    time.Time           // the moment of proof, as it was read
	pruned      time.Duration       // the last moment by which changes were judged to be recent no more
	lastServer  string              // of the last proof ever
	lists       lists
	collections [changefeed.Collections]*listVersion // changes of a collection as a whole
	changing    map[*listVersion]struct{}            // those with recent changes
	changed     uint64                               // changes of lists ever
}

// NewTracker makes a tracker that trusts nothing yet. The database is the one
// that the changes are of.
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
	t.lists = lists{known: map[changefeed.List]*listVersion{}, ring: ring{budget: t.ringBudget}}
	t.changing = map[*listVersion]struct{}{}
	for i := range t.collections {
		t.collections[i] = &listVersion{}
	}
}

// Changed adds a transaction to what is known of the lists it changed. joined
// says whether it was read while it was new: before the first proof it may have
// been in the log for long.
func (t *Tracker) Changed(at changefeed.Position, c *changefeed.Change) (joined bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence++
	t.position = at
	for i, list := range c.Lists {
		if list.Collection != changefeed.Keys {
			t.add(t.lists.of(list), c, c.RowsOf(i))
		}
	}
	for collection := range changefeed.Keys {
		if c.Touches(collection) {
			t.add(t.collections[collection], c, nil)
		}
	}
	return t.joined
}

// add adds a transaction to one of the versions that it changes.
func (t *Tracker) add(v *listVersion, c *changefeed.Change, rows changefeed.Rows) {
	added := &change{logPosition: logPosition{t.sequence, t.position, c.LSN}, xid: c.XID, committedAt: c.CommittedAt,
		settledAt: notYet, rowCount: uint32(len(rows)), nameOrder: c.NameOrder, rows: pack(rows)}
	v.add(added)
	t.lists.ring.add(added)
	t.changing[v] = struct{}{}
	t.changed++
}

// Settled notes that a transaction is visible since now.
func (t *Tracker) Settled(c *changefeed.Change, now time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, list := range c.Lists {
		if v := t.lists.known[list]; v != nil {
			v.settle(c.XID, now)
		}
	}
	for collection := range changefeed.Keys {
		if c.Touches(collection) {
			t.collections[collection].settle(c.XID, now)
		}
	}
}

// ValidThrough takes a proof, which is about a moment before now.
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

// Primary is the system and timeline of the last server that anything was proven
// of, and when that server was started. An empty run: that is not proven now.
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
	Proof       time.Duration    // the moment up to which everything is known to be applied
	Lists       int              // that changed recently
	Changes     uint64           // of lists: a transaction counts once for each list that it changed
	Compared    [Concerns]uint64 // entries that were compared with the newer changes of their lists, by outcome
	RingChanges int              // changes that are remembered
	RingBytes   int              // and the memory that they occupy
}

// Stats returns the present numbers.
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
