package origin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/page"
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
	last     atomic.Pointer[error] // of the last fetch; nil = there was none
	lineages map[string]lineage    // guarded by mu; by run: a pooler may lead to several servers
}

// look asks the standby what it has replayed. If it is the first answer of this run, it is
// remembered: no page is read from the standby before that (lineage.judge).
func (s *standby) look(ctx context.Context) error {
	conn, err := postgres.AcquireWaiting(ctx, s.pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	is, at, err := s.replayed(ctx, conn)
	if err != nil || is.StartedAt == "" {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.lineages[is.StartedAt]; !known {
		s.lineages[is.StartedAt] = lineage{seen: is.LSN, seenAt: at}
	}
	return nil
}

// CheckStandby returns why no page is read from the standby of that index in
// Stats().Standbys; nil = pages are read from it.
func (o *Origin) CheckStandby(ctx context.Context, i int) error {
	s := o.standbys[i]
	if err := s.look(ctx); err != nil {
		return postgres.Classify(err)
	}
	if last := s.last.Load(); last != nil && errors.Is(*last, postgres.ErrOtherPrimary) {
		return *last
	}
	if !s.breaker.IsClosed() {
		return errors.New("it failed several times in a row")
	}
	return nil
}

// FetchFromStandby reads what Fetch does from a standby of the primary of the proof. It tries one
// standby after the other, as long as they are refused before they get the query. Errors: those
// of Fetch, ErrLagging, ErrOtherPrimary.
func (o *Origin) FetchFromStandby(ctx context.Context, q page.Query, p changefeed.Proof) (rows page.Read, err error) {
	ctx, cancel := context.WithTimeout(ctx, standbyTimeout)
	defer cancel()
	for _, i := range rand.Perm(len(o.standbys)) {
		s := o.standbys[i]
		if !s.breaker.IsClosed() { // Probe tries it: a page need not wait for that
			err = page.ErrUnavailable
			continue
		}
		rows, err = o.fetchFrom(ctx, s, &q, &p)
		last := err
		s.last.Store(&last)
		if !errors.Is(err, postgres.ErrLagging) && !errors.Is(err, postgres.ErrOtherPrimary) {
			break
		}
	}
	return rows, err
}

func (o *Origin) fetchFrom(ctx context.Context, s *standby, q *page.Query, p *changefeed.Proof) (rows page.Read, err error) {
	err = s.fetch(ctx, q, func() error {
		soon, cancel := context.WithTimeout(ctx, replayTimeout)
		defer cancel()
		conn, err := postgres.Acquire(soon, s.pool)
		if errors.Is(err, postgres.ErrNoneLeft) {
			return err
		}
		if err != nil {
			return fmt.Errorf("%w: %w", page.ErrUnavailable, err)
		}
		defer conn.Release()
		is, at, err := s.replayed(soon, conn)
		if err != nil {
			return err
		}
		if err := s.admit(is, at, p); err != nil {
			return err
		}
		began := time.Now()
		var by fleet.Server
		rows, by, err = o.read(ctx, conn, q)
		o.observe(&s.upstream, err, time.Since(began))
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", page.ErrUnavailable, err)
			}
			return err
		}
		if by.StartedAt != is.StartedAt || by.Timeline != 0 { // a pooler led to two servers, or it was promoted
			return postgres.ErrOtherPrimary
		}
		if err := o.db.Options.Followed.RefuseDatabase(by); err != nil {
			return fmt.Errorf("%w: %w", postgres.ErrOtherPrimary, err)
		}
		rows.Began, rows.Took = began, time.Since(began)
		rows.At = changefeed.ReadPoint{Timeline: is.TimelineName(), LSN: is.LSN, Through: rows.At.Through}
		return nil
	})
	return rows, err
}

// admit returns why no page is accepted from the standby; nil = it is accepted. is says what the
// standby had replayed at the time at.
func (s *standby) admit(is postgres.WALPosition, at time.Time, p *changefeed.Proof) error {
	switch {
	case is.Timeline == 0:
		return fmt.Errorf("%w: it is not a standby, receives no WAL, or does not say from whom", postgres.ErrOtherPrimary)
	case is.TimelineName() != p.Timeline:
		return fmt.Errorf("%w: it follows %s, and the primary is %s (system/timeline)", postgres.ErrOtherPrimary, is.TimelineName(), p.Timeline)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known, err := s.lineages[is.StartedAt].judge(is.LSN, at, p)
	s.lineages[is.StartedAt] = known
	return err
}

// replayed reads what the standby has replayed, and returns the moment behind that. Its statement
// must end before the page's begins: otherwise the page's snapshot could be older than the
// position. The position is empty if the server was promoted or receives no WAL.
func (s *standby) replayed(ctx context.Context, conn *pgxpool.Conn) (is postgres.WALPosition, at time.Time, err error) {
	mode := pgx.QueryExecModeCacheStatement
	if postgres.Pooled(conn.Conn().PgConn()) {
		mode = pgx.QueryExecModeExec
	}
	is, err = postgres.ScanWALPosition(conn.QueryRow(ctx, postgres.StandbySQL, mode))
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return is, at, fmt.Errorf("%w: %w", page.ErrUnavailable, err)
	}
	return is, time.Now(), nil
}
