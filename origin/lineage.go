package origin

import (
	"fmt"
	"time"

	"listedge/origin/postgres"
)

// Needed is what a page from a standby must show, and what is known of its primary.
type Needed struct {
	Server  string    // the primary's system and timeline
	Run     string    // since it was started
	LSN     uint64    // the page shows all up to here
	Primary uint64    // where the primary's WAL ended
	At      time.Time // then, or later
}

// lineage is what is known of one run of a standby: whether all that it has
// replayed is its primary's.
//
// If the files of a primary are put back to an earlier state, a standby that was
// not made anew has replayed commits that its primary has lost: up to r0, beyond
// the end of the primary's WAL. System and timeline are the same, and it may even
// receive WAL.
//
// Invariant: a page is taken only if the replay position is at least floor. floor
// is an LSN of the same run of the primary, read after the standby was first
// seen, and not below what the standby had replayed then.
//
// Why that is enough: the position stays r0 until the primary's WAL has grown
// beyond it. An LSN of the primary that is read later than the position, and is
// below it, shows that the primary has lost commits, for no standby is ahead of its
// primary: this run of the standby is refused for good. If the primary was beyond
// r0 before the standby was first seen, floor is beyond r0, too. To get there the
// standby replays the primary's own records from r0 on, and Postgres stops at the
// first one: it does not name the standby's last record as its predecessor.
type lineage struct {
	primary string    // its run; empty = no page was wanted yet
	seen    uint64    // the replay position when the standby was first seen
	seenAt  time.Time // then, or earlier
	floor   uint64    // 0 = not known yet
	lost    bool      // it has commits that its primary has lost
}

var errLostFuture = fmt.Errorf("%w: it has replayed what its primary never wrote, or has lost because its files were put back: make the standby anew", postgres.ErrOtherPrimary)

// judge says why a page from the replay position, which was read no later than
// at, is not taken; nil if it is. It returns what is known from now on.
func (l lineage) judge(position uint64, at time.Time, n *Needed) (lineage, error) {
	if l.seenAt.IsZero() || l.primary != "" && l.primary != n.Run {
		l = lineage{seen: position, seenAt: at, lost: l.lost}
	}
	l.primary = n.Run
	if l.floor == 0 && !n.At.Before(l.seenAt) {
		l.floor = n.Primary
		l.lost = l.lost || n.Primary < l.seen
	}
	switch {
	case l.lost:
		return l, errLostFuture
	case l.floor == 0 || position < max(l.floor, n.LSN):
		return l, postgres.ErrLagging
	}
	return l, nil
}
