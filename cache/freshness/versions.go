package freshness

import (
	"math"
	"slices"
	"sort"
	"sync/atomic"
	"time"
	"unsafe"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// The changes of each list.
//
// Invariants:
//   - listVersion.changes has every change of the list after dropped, and ascends by
//     each of the three measures;
//   - listVersion.recent has every change that a running fill might not have seen, if
//     the fill can still be stored;
//   - if a list is not in lists.known, its last change is not after lists.others.

// logPosition is a position in the log, in three measures.
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

// listVersion has the known changes of one list, or of a whole collection.
type listVersion struct {
	last    atomic.Uint64 // sequence of the last change
	lastLSN uint64        // the highest LSN of a change
	changes []*change     // the oldest first
	recent  []*change     // changes that a running fill may not have seen
	settled int           // the index in recent after the change that was settled last; 0 = not known
	dropped logPosition   // changes up to here may be missing in changes
}

// maxRows bounds the changed rows with which an entry is compared, at 20 to 30 ns each.
// If there are more, the page is read again.
const maxRows = 4000

func (v *listVersion) add(c *change) {
	v.lastLSN = max(v.lastLSN, c.lsn)
	c.lsn = v.lastLSN // a new follower publishes once more what the old one may not have
	c.list = v
	v.changes, v.recent = append(v.changes, c), append(v.recent, c)
	v.last.Store(c.sequence)
}

// dropOldest drops the oldest change.
func (v *listVersion) dropOldest() {
	v.dropped.raise(v.changes[0].logPosition)
	v.changes[0] = nil
	v.changes = v.changes[1:]
}

// settle notes that a change is visible from now on. Mostly changes settle in their order,
// so the next one is tried first.
func (v *listVersion) settle(xid uint64, now time.Duration) {
	is := func(c *change) bool { return c.xid == xid && c.settledAt == notYet }
	i := v.settled
	if i >= len(v.recent) || !is(v.recent[i]) {
		for i = len(v.recent) - 1; i >= 0 && !is(v.recent[i]); i-- { // from the end, because most are among the last
		}
	}
	if i >= 0 {
		v.recent[i].settledAt, v.settled = now, i+1
	}
}

// prune removes a change from recent if every running fill that can still be stored has
// seen it. It reports whether any are left.
func (v *listVersion) prune(now, fillTimeout time.Duration) bool {
	v.recent = slices.DeleteFunc(v.recent, func(c *change) bool {
		return now-c.settledAt > fillTimeout
	})
	v.settled = 0
	return len(v.recent) > 0
}

// hasUnsettled reports whether a change is published and not known to be visible.
func (v *listVersion) hasUnsettled() bool {
	return slices.ContainsFunc(v.recent, func(c *change) bool { return c.settledAt == notYet })
}

// compareSince decides whether the changes after a sequence concern the entry's page. It
// returns the first one that does.
func (v *listVersion) compareSince(sequence uint64, e *Validity) (Concern, *change) {
	if sequence < v.dropped.sequence {
		return Forgotten, nil
	}
	return compare(v.from(func(c *change) bool { return c.sequence > sequence }), e, maxRows)
}

// compareAfter is compareSince for the changes after a position of the log.
func (v *listVersion) compareAfter(position changefeed.Position, e *Validity) (Concern, *change) {
	if position.Compare(v.dropped.position) < 0 {
		return Forgotten, nil
	}
	return compare(v.from(func(c *change) bool { return c.position.Compare(position) > 0 }), e, maxRows)
}

// compareRecent is compareSince for all changes that the entry's statement may not have
// seen. On the primary these are the recent ones, because a fill that can be stored began
// after all others were visible. A standby may not have replayed older changes.
func (v *listVersion) compareRecent(e *Validity) (Concern, *change) {
	if !e.ReadPoint.OnStandby() {
		return compare(v.recent, e, math.MaxInt)
	}
	if e.ReadPoint.LSN < v.dropped.lsn {
		return Forgotten, nil
	}
	return compare(v.from(func(c *change) bool { return c.lsn > e.ReadPoint.LSN }), e, maxRows)
}

// from returns the changes from the first one on for which isNewer is true.
func (v *listVersion) from(isNewer func(*change) bool) []*change {
	return v.changes[sort.Search(len(v.changes), func(i int) bool { return isNewer(v.changes[i]) }):]
}

// compare returns the first change that the entry's statement did not see and that
// concerns its page.
func compare(newer []*change, e *Validity, maxRows int) (Concern, *change) {
	if len(newer) > maxRows {
		return TooManyRows, nil
	}
	rows := 0
	for _, c := range newer {
		if e.ReadPoint.sees(c) {
			continue
		}
		if rows += int(c.rowCount); rows > maxRows {
			return TooManyRows, nil
		}
		if concern := e.Extent.Concern(c.rows); concern != Unconcerned {
			return concern, c
		}
	}
	return Unconcerned, nil
}

// ReadPoint says which transactions a statement saw. On the primary it is the snapshot.
// An LSN is not enough there, because commits become visible in another order than they
// are in the WAL. On a standby it is the LSN that had been replayed before the statement
// began, because a standby's snapshot does not name the running transactions.
type ReadPoint struct {
	Snapshot changefeed.Snapshot
	Run      string // on the primary: when it was started
	Server   string // on a standby: the system and timeline that it follows; empty = read from the primary
	LSN      uint64 // on a standby: up to here it had replayed
}

// OnStandby reports whether the statement ran on a standby.
func (r *ReadPoint) OnStandby() bool { return r.Server != "" }

func (r *ReadPoint) sees(c *change) bool {
	if r.OnStandby() {
		return c.lsn <= r.LSN
	}
	return r.Snapshot.Sees(c.xid)
}

// listVersions are the lists that changed recently.
type listVersions struct {
	known  map[changefeed.List]*listVersion
	others logPosition // the last change of all lists that are not in known
	ring   ring
}

// forgotten is after all changes.
var forgotten = logPosition{math.MaxUint64, changefeed.Position{Term: math.MaxUint64}, math.MaxUint64}

// maxLists bounds the lists that are remembered, at some 200 bytes each.
const maxLists = 1 << 17

// of returns the list's version. It adds one if the list is not known.
func (l *listVersions) of(list changefeed.List) *listVersion {
	v := l.known[list]
	if v == nil {
		v = &listVersion{lastLSN: l.others.lsn, dropped: l.others}
		v.last.Store(l.others.sequence)
		l.known[list] = v
	}
	return v
}

// lastLSN returns an LSN that is not below that of any change of the list.
func (l *listVersions) lastLSN(list changefeed.List) uint64 {
	if v := l.known[list]; v != nil {
		return v.lastLSN
	}
	return l.others.lsn
}

// forget makes room if more than limit lists are known. It forgets about half of them,
// those that changed the longest ago, except lists with recent changes. Entries of a
// forgotten list are not current any more.
func (l *listVersions) forget(limit int) {
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
		for len(v.changes) > 0 {
			c := v.changes[0]
			v.dropOldest()
			l.ring.release(c)
		}
		last := v.dropped
		last.lsn = v.lastLSN
		l.others.raise(last)
		v.last.Store(math.MaxUint64)
		v.dropped = forgotten
		delete(l.known, list)
	}
}

// ring has the changes of all lists, the oldest first, in a budget. If a new change does
// not fit, the oldest changes are dropped. Entries that are older than a dropped change
// of their list are not current any more.
//
// Invariant: bytes is the sum of the sizes of the changes from oldest to newest.
type ring struct {
	budget, bytes  int
	changes        int
	oldest, newest *change
}

// ringBudget is the budget in bytes: about 16,000 changes of one row.
const ringBudget = 16 << 20

// change is what one committed transaction changed in one list.
type change struct {
	logPosition // its lsn is not below that of an earlier change of the list
	xid         uint64
	committedAt int64         // changefeed.Change.CommittedAt
	settledAt   time.Duration // every statement that begins at this moment or later sees it; notYet = it is not visible
	rowCount    uint32
	rows        []lists.Row

	list *listVersion // the list whose changes include it; nil = the list has dropped it
	next *change      // the next newer change in the ring
}

const notYet = time.Duration(math.MaxInt64)

// changeSize is the memory of a change without its rows, in bytes: the struct, the
// pointer in its list's slice, and the rounding of append and the allocator. See
// TestMemoryOfTheRing.
const changeSize = 128

func (c *change) size() int { return changeSize + c.rowBytes() }

func (c *change) rowBytes() (n int) {
	for i := range c.rows {
		n += int(unsafe.Sizeof(c.rows[i])) + len(c.rows[i].NameKey) + len(c.rows[i].Text)
	}
	return n
}

// add adds a change, and drops the oldest changes until all fit into the budget.
func (r *ring) add(c *change) {
	if r.newest == nil {
		r.oldest = c
	} else {
		r.newest.next = c
	}
	r.newest = c
	r.bytes += c.size()
	r.changes++
	for r.bytes > r.budget && r.oldest != c {
		r.dropOldest()
	}
}

func (r *ring) dropOldest() {
	c := r.oldest
	if c.list != nil {
		c.list.dropOldest()
		r.release(c)
	}
	r.bytes -= c.size()
	r.changes--
	r.oldest, c.next = c.next, nil
}

// release frees the rows of a change that its list has dropped. For a fill that may not
// have seen the change, it counts as a change of any row.
func (r *ring) release(c *change) {
	r.bytes -= c.rowBytes()
	c.rows, c.list = nil, nil
}

// Invalidation is why an entry is not current any more.
type Invalidation struct {
	Concern     Concern
	XID         uint64              // the transaction's id, 64 bits wide; 0 = not known
	Position    changefeed.Position // the transaction's position in the log
	CommittedAt int64               // changefeed.Change.CommittedAt
}

// invalidation makes an Invalidation of the change that concerns an entry; nil = the
// change is not known.
func (c *change) invalidation(concern Concern) *Invalidation {
	i := &Invalidation{Concern: concern}
	if c != nil {
		i.XID, i.Position, i.CommittedAt = c.xid, c.position, c.committedAt
	}
	return i
}
