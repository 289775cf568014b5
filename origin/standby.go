package origin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/origin/postgres"
)

// Errors of FetchFromStandby, beside those of Fetch.
var (
	ErrBehind  = errors.New("the standby has not replayed far enough, or was not looked at before")
	ErrForeign = errors.New("not a standby of this primary")
)

const (
	// standbyPatience is how long a standby may take to say how far it is; a
	// query of its own follows only then.
	standbyPatience = 250 * time.Millisecond
	// standbyBudget is what asking a standby in vain may cost in all. A fill
	// has as much time left for the primary as if there were no standby. One
	// that keeps taking longer is left alone: slower than the primary, it is no
	// help.
	standbyBudget = 500 * time.Millisecond
	// behindFor is how long a standby is not asked again for what it did not
	// have.
	behindFor = 20 * time.Millisecond
	// mostLineages bounds the runs of standbys that are remembered at one address.
	mostLineages = 64
)

// standby is a hot standby that may serve pages.
type standby struct {
	*source
	host     string
	followed func() Followed
	last     atomic.Pointer[sighting]

	refusal  atomic.Pointer[error] // ErrForeign, when it was last asked; nil = it was not refused
	answered atomic.Bool           // a probe, ever
	failure  atomic.Pointer[error] // why it did not answer the last one that it did not

	mu       sync.Mutex
	lineages map[string]lineage // guarded by mu; by when the standby was started: a pooler may lead to several

	fetched, behind, foreign, failed atomic.Uint64
}

// sighting is how far a standby was when it was last asked.
type sighting struct {
	Replayed
	run string // when the standby was started
	at  time.Time
}

// StandbyStats are a standby's counts since the start and its present state.
type StandbyStats struct {
	Host                             string
	Fetched, Behind, Foreign, Failed uint64
	BreakerOpen                      bool
	Refusal                          error // why it is not taken for a standby of the primary; nil = it is
	Failure                          error // why it last did not answer a probe; nil = it always did
}

func newStandby(pool *pgxpool.Pool, followed func() Followed) *standby {
	config := pool.Config().ConnConfig
	return &standby{source: newSource("pages of a standby", pool, standbyRest), host: fmt.Sprintf("%s:%d", config.Host, config.Port), lineages: map[string]lineage{}, followed: followed}
}

func (s *standby) stats() StandbyStats {
	stats := StandbyStats{Host: s.host, Fetched: s.fetched.Load(), Behind: s.behind.Load(), Foreign: s.foreign.Load(), Failed: s.failed.Load(),
		BreakerOpen: s.failing()}
	if err := s.refusal.Load(); err != nil {
		stats.Refusal = *err
	}
	if err := s.failure.Load(); err != nil {
		stats.Failure = *err
	}
	return stats
}

// probe also asks one that has never answered: it may not be there at all. The
// first answer is a look, so that pages need not wait for one.
func (s *standby) probe(ctx context.Context) {
	if s.open() || s.answered.Load() && !s.failing() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	_, err := s.breaker.Execute(func() (Page, error) { return Page{}, classify(s.look(ctx)) })
	if err == nil {
		s.answered.Store(true)
	} else if errors.Is(err, ErrUnavailable) {
		s.failure.Store(&err)
	}
}

// look keeps how far the standby is, for lineage.judge to compare.
func (s *standby) look(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	replayed, run, err := s.replayed(ctx, conn)
	if err != nil || run == "" {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.lineages[run]; !known {
		s.lineages[run] = lineage{seen: replayed.LSN, seenAt: time.Now()}
	}
	return nil
}

// HasStandbys says whether there are standbys to fetch from.
func (o *Origin) HasStandbys() bool { return len(o.standbys) > 0 }

// FetchFromStandby reads one page from a standby that follows the primary and
// has replayed enough of its WAL. They are asked in turn; the next one only where
// that costs no more waiting. Errors: those of Fetch, ErrBehind, ErrForeign.
func (o *Origin) FetchFromStandby(ctx context.Context, q Query, n Needed) (page Page, err error) {
	ctx, cancel := context.WithTimeout(ctx, standbyBudget)
	defer cancel()
	first := int(o.next.Add(1) % uint32(len(o.standbys)))
	for i := range o.standbys {
		s := o.standbys[(first+i)%len(o.standbys)]
		if s.open() {
			err = ErrUnavailable
			continue
		}
		page, err = o.fetchFrom(ctx, s, &q, &n)
		if refused := err; errors.Is(err, ErrForeign) {
			s.refusal.Store(&refused)
		} else {
			s.refusal.Store(nil)
		}
		switch {
		case err == nil:
			s.fetched.Add(1)
			return page, nil
		case errors.Is(err, ErrBehind):
			s.behind.Add(1)
		case errors.Is(err, ErrForeign):
			s.foreign.Add(1)
		default:
			s.failed.Add(1)
			return Page{}, err
		}
	}
	return Page{}, err
}

func (o *Origin) fetchFrom(ctx context.Context, s *standby, q *Query, n *Needed) (Page, error) {
	if seen := s.last.Load(); seen != nil && time.Since(seen.at) < behindFor {
		if err := s.serves(seen, n); err != nil {
			return Page{}, err
		}
	}
	return s.serve(ctx, q, func() (Page, error) {
		session, err := o.openSoon(ctx, s.pool)
		if err != nil {
			return Page{}, err
		}
		defer o.close(session)
		replayed, run, err := s.replayed(ctx, session.conn)
		if err != nil {
			return Page{}, err
		}
		seen := &sighting{replayed, run, time.Now()}
		s.last.Store(seen)
		if err := s.serves(seen, n); err != nil {
			return Page{}, err
		}
		began := time.Now()
		page, err := o.readOn(ctx, session, q)
		page.Asked, page.Took = began, time.Since(began)
		if err != nil && ctx.Err() != nil {
			return Page{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if err == nil && (page.Run != run || !page.Standby) { // a pooler met two servers, or it was promoted
			return Page{}, ErrForeign
		}
		if database := s.followed().Database; err == nil && database != "" && page.Database != database {
			return Page{}, fmt.Errorf("%w: it answers from database %s, and not %s", ErrForeign, page.Database, database)
		}
		page.Snapshot, page.Run, page.Replayed = "", "", replayed
		return page, classify(err)
	})
}

// serves says why the standby cannot serve a page as it was seen; nil if it can.
func (s *standby) serves(seen *sighting, n *Needed) error {
	switch seen.Server {
	case n.Server:
	case "":
		return fmt.Errorf("%w: it is none, receives WAL from nobody, or does not say from whom", ErrForeign)
	default:
		return fmt.Errorf("%w: it follows %s, and the primary is %s (system/timeline)", ErrForeign, seen.Server, n.Server)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known, err := s.lineages[seen.run].judge(seen.LSN, seen.at, n)
	if len(s.lineages) >= mostLineages {
		clear(s.lineages) // what is forgotten is looked at anew
	}
	s.lineages[seen.run] = known
	return err
}

// openSoon is open with a standby's patience.
func (o *Origin) openSoon(ctx context.Context, pool *pgxpool.Pool) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, standbyPatience)
	defer cancel()
	session, err := o.open(ctx, pool)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return session, nil
}

// replayed asks how far the standby is: in a statement that is over before the
// page's begins, whose snapshot would else be the older of the two. A server
// that was promoted is no standby any more, and one that receives from nobody
// does not tell whose it is. run is which run of the server said so.
func (s *standby) replayed(ctx context.Context, conn *pgxpool.Conn) (r Replayed, run string, err error) {
	ctx, cancel := context.WithTimeout(ctx, standbyPatience)
	defer cancel()
	mode := pgx.QueryExecModeCacheStatement
	if postgres.Pooled(conn.Conn().PgConn()) {
		mode = pgx.QueryExecModeExec
	}
	run, err = scanReplayed(conn.QueryRow(ctx, replayedSQL, mode), &r)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return r, "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return r, run, nil
}
