package origin

import (
	"fmt"
	"time"

	"listedge/internal/changefeed"
	"listedge/origin/postgres"
)

// lineage is what is known of one run of a standby: whether the primary has all that the
// standby has replayed.
//
// If a primary is restored from an older backup or snapshot, and its standby is not rebuilt,
// the standby has replayed commits that the primary has lost. Let r0 be the LSN up to which
// it had replayed: it is beyond the end of the primary's WAL. System and timeline are the
// same, and the standby may even receive WAL.
//
// Invariant: a page is accepted only if the replay position is at least floor. floor is an
// LSN of the same run of the primary that was read after the standby was first seen, and
// that is not below the standby's position at that time.
//
// Why that is enough: the position stays r0 until the primary's WAL has grown beyond r0. No
// standby is ahead of its own primary. So if an LSN of the primary is below a position that
// was read before it, the primary has lost commits, and this run of the standby is refused
// for good. If the primary was beyond r0 before the standby was first seen, floor is beyond
// r0, too. To reach floor the standby would have to replay the primary's records from r0
// on, and Postgres stops at the first of them, because it does not refer to the standby's
// last record as the one before it.
type lineage struct {
	primary string    // the primary's run; empty = no page was wanted yet
	seen    uint64    // the replay position when the standby was first seen
	seenAt  time.Time // when the standby was first seen, or later; zero = it was not
	floor   uint64    // 0 = not known yet
	lost    bool      // the standby has commits that the primary has lost
}

var errAheadOfPrimary = fmt.Errorf(
	"%w: it has replayed commits that the primary does not have (the primary was restored from an older backup?): rebuild the standby", postgres.ErrOtherPrimary)

// judge returns why a page is not accepted from a standby at this replay position; nil if it
// is accepted. The position was read at that time or before. judge also returns what is
// known from now on.
func (l lineage) judge(position uint64, at time.Time, p *changefeed.Proof) (lineage, error) {
	if l.seenAt.IsZero() || l.primary != "" && l.primary != p.StartedAt {
		l = lineage{seen: position, seenAt: at, lost: l.lost}
	}
	l.primary = p.StartedAt
	if l.floor == 0 && !p.Moment.Before(l.seenAt) {
		l.floor = p.LSN
		l.lost = l.lost || p.LSN < l.seen
	}
	switch {
	case l.lost:
		return l, errAheadOfPrimary
	case l.floor == 0 || position < l.floor:
		return l, postgres.ErrLagging
	}
	return l, nil
}
