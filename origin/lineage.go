package origin

import (
	"fmt"
	"time"
)

// Needed is what a page of a standby must show, and what is known of its primary.
type Needed struct {
	Server  string    // the primary's system and timeline
	Run     string    // when it was started, by its own clock
	LSN     uint64    // the page shows all up to here
	Primary uint64    // where the primary's WAL ended
	At      time.Time // then, or later
}

// lineage is what is known of one run of a standby: whether it has replayed what
// its primary has written.
//
// Where the files of a primary were put back to an earlier state, a standby that
// was not made anew has replayed commits that its primary has lost: up to r0,
// beyond the end of the primary's WAL. System and timeline are the same, and it
// may even receive.
//
// Invariant: a page is taken only from a replay position that is at least floor,
// an LSN of this run of the primary that was taken after a look at the standby
// and is not below what the look saw.
//
// Why that is enough: the position stays r0 until the primary's WAL has grown
// beyond it. An LSN taken after a look, and below what it saw, shows a lost
// future, for no standby is ahead of its primary: this run of the standby is
// refused for good. Where the primary was beyond r0 before anybody looked, the
// floor is beyond r0, too. To get there the standby replays the primary's own
// records from r0 on, and Postgres stops at the first, which does not name the
// record that the standby has before it as its predecessor.
type lineage struct {
	run    string    // of the primary; empty = no page was wanted yet
	seen   uint64    // the replay position at the first look
	seenAt time.Time // then, or earlier
	floor  uint64    // 0 = nothing is known yet
	lost   bool
}

// errLost: a standby of a lost future.
var errLost = fmt.Errorf("%w: it has replayed what its primary never wrote, or has lost because its files were put back: make the standby anew", ErrOtherPrimary)

// judge says why a page from the replay position is not taken, which was looked
// at no later than at; nil if it is. It returns what is known from now on.
func (l lineage) judge(position uint64, at time.Time, n *Needed) (lineage, error) {
	if l.seenAt.IsZero() || l.run != "" && l.run != n.Run {
		l = lineage{seen: position, seenAt: at, lost: l.lost}
	}
	l.run = n.Run
	if l.floor == 0 && !n.At.Before(l.seenAt) {
		if l.floor = n.Primary; n.Primary < l.seen {
			l.lost = true
		}
	}
	switch {
	case l.lost:
		return l, errLost
	case l.floor == 0 || position < max(l.floor, n.LSN):
		return l, ErrLagging
	}
	return l, nil
}
