package origin

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/page"
	"listedge/internal/remedy"
	"listedge/origin/postgres"
)

const (
	// replayTimeout is how long a standby may take to connect and to report what it has
	// replayed. A page's query is sent only after that.
	replayTimeout = 250 * time.Millisecond
	// standbyTimeout bounds the time that a page spends on all standbys together; the
	// primary has its full time after it. A standby that keeps taking longer opens its
	// breaker: it is slower than the primary.
	standbyTimeout = 500 * time.Millisecond
)

// standby is a hot standby that may serve pages.
type standby struct {
	upstream
	followed *fleet.Followed
	last     atomic.Pointer[error] // of the last fetch; nil = there was none
	lineages map[string]lineage    // guarded by mu; by run: a pooler may lead to several servers
}

// errNoStandby: a server says nothing of what it has replayed.
var errNoStandby = remedy.Add(fmt.Errorf("%w: it is not a standby, receives no WAL, or does not say from whom", postgres.ErrOtherPrimary),
	"name hot standbys of the primary in --replica-url, and GRANT pg_read_all_stats TO their user")

// look asks the standby what it has replayed, and returns an error if it is none of this primary. If
// it is the first answer of this run, it is remembered: no page is read from the standby before that
// (lineage.judge).
func (s *standby) look(ctx context.Context) error {
	conn, err := postgres.AcquireWaiting(ctx, s.pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	pos, at, err := s.replayed(ctx, conn)
	if err != nil {
		return err
	}
	if pos.Timeline == 0 {
		return errNoStandby
	}
	if followed, known := s.followed.Identity(); known && pos.System != followed.System {
		return fmt.Errorf("%w: it follows the system %s, and the primary is %s", postgres.ErrOtherPrimary, pos.System, followed.System)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.lineages[pos.StartedAt]; !known {
		s.lineages[pos.StartedAt] = lineage{seen: pos.LSN, seenAt: at}
	}
	return nil
}

// admit returns why no page is accepted from the standby; nil = it is accepted. pos is what the
// standby had replayed at the time at.
func (s *standby) admit(pos postgres.WALPosition, at time.Time, p *changefeed.Proof) error {
	switch {
	case pos.Timeline == 0:
		return errNoStandby
	case pos.TimelineName() != p.Timeline:
		return fmt.Errorf("%w: it follows %s, and the primary is %s (system/timeline)", postgres.ErrOtherPrimary, pos.TimelineName(), p.Timeline)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known, err := s.lineages[pos.StartedAt].judge(pos.LSN, at, p)
	s.lineages[pos.StartedAt] = known
	return err
}

// replayed reads what the standby has replayed, and returns the moment behind that. Its statement
// must end before the page's begins: otherwise the page's snapshot could be older than the
// position. The position is empty if the server was promoted or receives no WAL.
func (s *standby) replayed(ctx context.Context, conn *pgxpool.Conn) (pos postgres.WALPosition, at time.Time, err error) {
	mode := pgx.QueryExecModeCacheStatement
	if postgres.Pooled(conn.Conn().PgConn()) {
		mode = pgx.QueryExecModeExec
	}
	pos, err = postgres.ScanWALPosition(conn.QueryRow(ctx, postgres.StandbySQL, mode))
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return pos, at, fmt.Errorf("%w: %w", page.ErrUnavailable, err)
	}
	return pos, time.Now(), nil
}

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
