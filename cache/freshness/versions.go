package freshness

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
)

// What is known of the changes of each list.
//
// Invariants:
//   - recent holds every change that the statement of a fill which may still be
//     stored might not see;
//   - no change that left recent came after dropped;
//   - no change of a list that is not in known came after others.

// logPosition is a place in the log, in its three measures.
type logPosition struct {
	sequence uint64 // the tracker's own number
	position changefeed.Position
	lsn      uint64
}

// raise sets each measure that is lower than that of to.
func (p *logPosition) raise(to logPosition) {
	p.sequence, p.lsn = max(p.sequence, to.sequence), max(p.lsn, to.lsn)
	if to.position.Compare(p.position) > 0 {
		p.position = to.position
	}
}

// listVersion holds what is known about changes of one list, or of a whole
// collection.
type listVersion struct {
	last    atomic.Uint64 // sequence of the last change
	lastLSN uint64        // and its LSN
	recent  []change
	dropped logPosition
}

// change is one committed transaction.
type change struct {
	logPosition
	xid       uint64
	settled   bool          // every statement that begins now sees it
	settledAt time.Duration // since when
}

func (v *listVersion) add(xid uint64, at logPosition) {
	v.lastLSN = max(v.lastLSN, at.lsn)
	v.recent = append(v.recent, change{logPosition: at, xid: xid})
	v.last.Store(at.sequence)
}

// settle notes that a change is visible since now.
func (v *listVersion) settle(xid uint64, now time.Duration) {
	for i := len(v.recent) - 1; i >= 0; i-- { // most are among the last
		if c := &v.recent[i]; c.xid == xid && !c.settled {
			c.settled, c.settledAt = true, now
			return
		}
	}
}

// prune drops the changes that every fill which may still be stored has seen. It
// returns whether any are left.
func (v *listVersion) prune(now, fillTimeout time.Duration) bool {
	v.recent = slices.DeleteFunc(v.recent, func(c change) bool {
		seenByAll := c.settled && now-c.settledAt > fillTimeout
		if seenByAll {
			v.dropped.raise(c.logPosition)
		}
		return seenByAll
	})
	return len(v.recent) > 0
}

// hasUnsettled says whether a change is published and not known to be visible.
func (v *listVersion) hasUnsettled() bool {
	return slices.ContainsFunc(v.recent, func(c change) bool { return !c.settled })
}

// seenSince says whether the statement saw all changes after a sequence.
func (v *listVersion) seenSince(sequence uint64, r *ReadPoint) bool {
	return sequence >= v.dropped.sequence && v.sees(r, func(c *change) bool { return c.sequence > sequence })
}

// seenAfter says whether the statement saw all changes after a position of the log.
func (v *listVersion) seenAfter(position changefeed.Position, r *ReadPoint) bool {
	return position.Compare(v.dropped.position) >= 0 && v.sees(r, func(c *change) bool { return c.position.Compare(position) > 0 })
}

// seenBy says whether the statement saw all changes that are known. A fill that
// may be stored began too late to miss those that left recent on the primary; a
// standby may not have replayed them.
func (v *listVersion) seenBy(r *ReadPoint) bool {
	if r.OnStandby() {
		return r.LSN >= v.lastLSN
	}
	return v.sees(r, func(*change) bool { return true })
}

// sees says whether the statement saw the recent changes that are of interest.
func (v *listVersion) sees(r *ReadPoint, ofInterest func(*change) bool) bool {
	for i := range v.recent {
		if c := &v.recent[i]; ofInterest(c) && !r.sees(c) {
			return false
		}
	}
	return true
}

// ReadPoint is how much of the database a statement saw. On the primary that is
// what its snapshot sees: commits become visible in another order than they are
// in the WAL, so an LSN does not say it. On a standby it is what had been replayed
// before the statement began: a standby's snapshot does not name the transactions
// that are running.
type ReadPoint struct {
	Snapshot changefeed.Snapshot
	Run      string // of the primary: when it was started
	Server   string // of a standby: system and timeline it follows; empty = read from the primary
	LSN      uint64 // and what it had replayed
}

// OnStandby says whether the statement ran on a standby.
func (r *ReadPoint) OnStandby() bool { return r.Server != "" }

func (r *ReadPoint) sees(c *change) bool {
	if r.OnStandby() {
		return c.lsn <= r.LSN
	}
	return r.Snapshot.Sees(c.xid)
}

// lists are the lists that changed recently.
type lists struct {
	known  map[changefeed.List]*listVersion
	others logPosition
}

// maxLists bounds the lists that are remembered, at some 200 bytes each.
const maxLists = 1 << 17

// of returns the list's version, which is remembered from then on.
func (l *lists) of(list changefeed.List) *listVersion {
	v := l.known[list]
	if v == nil {
		v = &listVersion{lastLSN: l.others.lsn, dropped: l.others}
		v.last.Store(l.others.sequence)
		l.known[list] = v
	}
	return v
}

// forget makes room when more than limit lists are known: it forgets the half
// that changed the longest ago, except lists with recent changes. Entries of a
// forgotten list are not current any more.
func (l *lists) forget(limit int) {
	if len(l.known) <= limit {
		return
	}
	sample := make([]uint64, 0, 1000)
	for _, v := range l.known {
		if sample = append(sample, v.last.Load()); len(sample) == cap(sample) {
			break
		}
	}
	slices.Sort(sample)
	median := sample[(len(sample)-1)/2]
	for list, v := range l.known {
		if len(l.known) <= limit/2 { // many lists may have the same sequence
			break
		}
		if len(v.recent) > 0 || v.last.Load() > median {
			continue
		}
		last := v.dropped
		last.lsn = v.lastLSN
		l.others.raise(last)
		v.last.Store(math.MaxUint64)
		v.dropped.sequence = math.MaxUint64
		delete(l.known, list)
	}
}
