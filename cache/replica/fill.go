package replica

import (
	"slices"
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// Source says where rows were read.
type Source uint8

// The sources.
const (
	Primary Source = iota // by a statement
	Standby               // by a statement
	Copy                  // in Redis, where a node has put what it cut from its own ranges
)

// ReadPoint says which changes the rows of a fill show.
type ReadPoint struct {
	Source   Source
	Began    changefeed.Position
	Run      string              // of the primary: when it was started
	Snapshot changefeed.Snapshot // on the primary: the statement's own
	Server   string              // that the standby follows: its system and timeline
	LSN      uint64              // on the standby: it had replayed up to here before the statement began
	Through  uint64              // on the standby: the statement shows nothing behind it, such as what had been received when it had begun
	Position changefeed.Position // of the copy: the state that its rows equal
}

// Start is the replica's state before rows are read.
type Start struct {
	resets, beats uint64
	At            changefeed.Position
}

// Fill is what was read of a list: all its rows behind After, up to Until.
type Fill struct {
	Key
	After, Until lists.Position
	End          bool // up to the end of the list, whatever Until is
	Rows         []lists.Row
	At           ReadPoint
	ReadAt       time.Duration
	parked       atomic.Bool
	Start        Start // what Begin returned before the statement was sent, or the copy was asked for
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
	return Start{r.resets, r.beats, r.state.position}
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
	if o == Parked {
		r.park(f)
	}
	r.counts.Fills[o]++
	r.evict()
	return o
}

func (r *Replica) merge(f *Fill) Outcome {
	switch {
	case f.Start.resets != r.resets || r.beats == 0:
		return Resynced
	case r.isOfWrongServer(&f.At):
		return WrongServer
	case r.isTooOld(f):
		return TooOld
	case !r.shows(&f.At):
		return Parked
	}
	rows, o := r.unseen(f)
	if o != Merged {
		return o
	}
	return r.fill(f, rows)
}

func (r *Replica) isOfWrongServer(v *ReadPoint) bool {
	switch v.Source {
	case Primary:
		return v.Run != r.state.run
	case Standby:
		return v.Server != r.state.server
	}
	return false
}

// isTooOld says whether a change may have been forgotten that the fill does not show. A
// statement on the primary sees what had been settled here before it was sent.
func (r *Replica) isTooOld(f *Fill) bool {
	floor := &r.history.floor
	switch f.At.Source {
	case Primary:
		return f.Start.beats < floor.beat
	case Standby:
		return f.At.LSN < floor.lsn
	}
	return f.At.Position.Compare(floor.at) < 0
}

// shows says whether the state shows all that the read point shows. An equal Xmax is not
// enough: transactions before it may have ended since. Neither is an LSN: a standby shows
// a commit before the primary does.
func (r *Replica) shows(v *ReadPoint) bool {
	s := &r.state
	switch v.Source {
	case Primary:
		return s.snapshot.Xmax >= v.Snapshot.Xmax && !slices.ContainsFunc(s.snapshot.Running, v.Snapshot.Sees)
	case Standby:
		return s.lsn >= v.Through && (s.unsettled == 0 || s.unsettled > v.Through)
	}
	return s.position.Compare(v.Position) >= 0
}

// sees says whether the fill shows a change that was settled.
func (f *Fill) sees(c *remembered) bool {
	switch f.At.Source {
	case Primary:
		return c.beat <= f.Start.beats || f.At.Snapshot.Sees(c.xid)
	case Standby:
		return c.lsn <= f.At.LSN
	}
	return c.at.Compare(f.At.Position) <= 0
}

func (f *Fill) Pending() bool { return f.parked.Load() }
func (r *Replica) Parked(k *Key, after lists.Position) (*Fill, []lists.Row, bool) {
	return nil, nil, false
}
func (r *Replica) State() ReadPoint {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return ReadPoint{Run: r.state.run, Snapshot: r.state.snapshot, Began: r.state.position}
}
