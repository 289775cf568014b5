package replica

import (
	"slices"
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// Start is the replica's state before rows are read.
type Start struct {
	At     changefeed.Position // of the state's heartbeat
	resets uint64
}

// Fill is what was read of a list: the rows behind After, up to the last of them.
type Fill struct {
	Key
	After  lists.Position
	Rows   []lists.Row
	End    bool // the list ends with them
	At     changefeed.ReadPoint
	Start  Start         // what Begin returned before the statement was sent, or a copy was asked for
	ReadAt time.Duration // for the caller

	outcome atomic.Uint32
}

// Outcome returns what became of the fill so far. Only one that is Parked has another later.
func (f *Fill) Outcome() Outcome { return Outcome(f.outcome.Load()) }

// until returns the bound behind the fill.
func (f *Fill) until() lists.Position {
	if f.End || len(f.Rows) == 0 {
		return listEnd
	}
	return behind(f.Rows[len(f.Rows)-1].Position(f.Order))
}

// Outcome says what became of a fill.
type Outcome uint8

// The outcomes.
const (
	Merged       Outcome = iota
	Parked               // it waits for a heartbeat
	Resynced             // there was a Reset meanwhile, or there is no state
	WrongServer          // not this primary, or not a standby of it
	TooOld               // it may not show a change that is not remembered
	AnyRow               // it does not show a change that may have changed any row
	Inconsistent         // it differs from what is known already
	Dropped              // too many fills wait
	Outcomes
)

// String is the name that metrics use.
func (o Outcome) String() string {
	return [...]string{"merged", "parked", "resynced", "wrong-server", "too-old", "any-row", "inconsistent", "dropped"}[o]
}

// Begin is called before a statement is sent, or a copy is asked for.
func (r *Replica) Begin() Start {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return Start{r.state.position, r.resets}
}

// Merge makes a range of what was read. It waits until the state shows all that the rows
// show, and then brings them to the state by the changes that they do not show. The fill
// belongs to the replica from now on.
//
// Why the result is right. The state H shows all that the read point V shows. Let x be a
// row. The transactions that changed x became visible in the order in which they changed
// it (see the package). So those that V shows come first, then those that H shows and V
// does not, and the last of these left the version of H. On a standby both are in the
// order of the WAL, and a copy equals an earlier state. A change that the rows show may
// be applied once more: the last version of each row is the same.
func (r *Replica) Merge(f *Fill) Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.merge(f)
	f.outcome.Store(uint32(o))
	r.counts.Fills[o]++
	if o == Parked {
		r.park(f)
	}
	r.evict()
	return o
}

func (r *Replica) merge(f *Fill) Outcome {
	switch {
	case f.Start.resets != r.resets || !r.joined:
		return Resynced
	case r.isOfWrongServer(&f.At):
		return WrongServer
	case r.isTooOld(f):
		return TooOld
	case !r.covers(&f.At): // mutation: merged at once
		return Parked
	}
	rows, o := r.unseen(f)
	if o != Merged {
		return o
	}
	return r.fill(f, rows)
}

func (r *Replica) isOfWrongServer(v *changefeed.ReadPoint) bool {
	if v.Timeline != "" {
		return v.Timeline != r.state.timeline
	}
	return v.StartedAt != r.state.startedAt // mutation: a fill of another run
}

// isTooOld says whether a change may have been forgotten that the fill does not show.
func (r *Replica) isTooOld(f *Fill) bool {
	if f.At.Timeline != "" {
		return f.At.LSN < r.history.floor.lsn // mutation: a standby behind what is remembered
	}
	return f.At.Began.Compare(r.history.floor.at) < 0 // mutation: a fill of the primary from before what is remembered
}

// covers says whether the state shows all that the read point shows. An equal Xmax is not
// enough: transactions before it may have ended since. Neither is an LSN: a standby shows
// a commit before the primary does, also one that is no change, such as ALTER TABLE: it may
// come after a heartbeat's snapshot was taken, and before its LSN was read. So the snapshot
// must be younger than the LSN.
func (r *Replica) covers(v *changefeed.ReadPoint) bool {
	s := &r.state
	if v.Timeline != "" {
		// mutation: by the LSN alone; an unsettled change at the LSN; by the LSN before the statement
		return s.lsn >= v.Through && (s.unsettled == 0 || s.unsettled > v.Through)
	}
	return s.snapshot.Xmax >= v.Snapshot.Xmax && !slices.ContainsFunc(s.snapshot.Running, v.Snapshot.Sees) // mutation: by xmax alone; a lower xmax
}

// sees says whether the fill shows a change that was settled. A statement on the primary
// shows what a heartbeat showed that was taken before it began.
func (f *Fill) sees(c *remembered) bool {
	if f.At.Timeline != "" {
		return c.lsn <= f.At.LSN // mutation: a standby that lags; a standby's LSN is behind the change
	}
	return c.at.Compare(f.At.Began) <= 0 || f.At.Snapshot.Sees(c.xid) // mutation: without what the primary's statement does not see
}
