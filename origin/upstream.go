package origin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrWrongServer: a server answered that is not the primary. A kind of
// ErrUnavailable: nothing is known of what the primary would have said.
var ErrWrongServer = fmt.Errorf("%w: not the primary", ErrUnavailable)

// answerer is the server that gave an answer, as the answer itself says.
type answerer struct {
	Run      string // when it was started, by its own clock
	Standby  bool   // it was in recovery
	Database string // its name
	address  net.Addr
	server   string // its system and timeline; empty = nobody has asked
}

// serverSQL is an expression by which an answer names its server and its database:
// <run>@<standby or primary>@<database>.
const serverSQL = `extract(epoch FROM pg_postmaster_start_time())::text || CASE WHEN pg_is_in_recovery() THEN '@standby@' ELSE '@primary@' END || current_database()`

func answererOf(said string) (a answerer) {
	run, rest, _ := strings.Cut(said, "@")
	role, database, _ := strings.Cut(rest, "@")
	a.Run, a.Standby, a.Database = run, role == "standby", database
	return a
}

// Followed is what is known of the primary that the fleet follows.
type Followed struct {
	Run      string // which run of it; empty = that is not proven at the moment
	Server   string // its system and newest timeline; empty = the fleet never followed any
	Database string // its name; empty = it is not known
}

// refuses says why an answer is not taken for the primary's; empty = it is.
//
// Invariant, in every mode: an answer that is taken comes
//   - from no server in recovery, whose snapshot tells nothing of what it lacks;
//   - from no other database than the fleet's, which a pooler may lead to on the
//     same server;
//   - while it is proven which run is followed, from that run: any other may be
//     an old primary that lives on;
//   - at any time, from no earlier timeline of the system that was followed
//     last: a promotion has ended that one. A later start of the followed
//     timeline, a later timeline and another system are taken as soon as nothing
//     is proven of the old one, which is a freshness bound after its last sign
//     of life. So neither a restart nor a fail-over needs an exception, and in a
//     split brain the side of the earlier timeline is refused by all who ever
//     followed the later one.
func (f Followed) refuses(by answerer) string {
	switch {
	case by.Standby:
		return fmt.Sprintf("%s is a standby", by.address)
	case f.Database != "" && by.Database != f.Database:
		return fmt.Sprintf("%s is database %s, and not %s", by.address, by.Database, f.Database)
	case f.Run != "" && by.Run != f.Run:
		return fmt.Sprintf("%s, started %s, is not the server that is followed: %s, started %s", by.address, startOf(by.Run), f.Server, startOf(f.Run))
	case f.needsServer() && earlier(by.server, f.Server):
		return fmt.Sprintf("%s is %s (system/timeline), which a promotion has ended: %s was followed since", by.address, by.server, f.Server)
	}
	return ""
}

// needsServer says whether the answer depends on the answerer's system and timeline.
func (f Followed) needsServer() bool { return f.Run == "" && f.Server != "" }

// earlier says whether a is an earlier timeline of the same system as b.
func earlier(a, b string) bool {
	one, other := strings.Split(a, "/"), strings.Split(b, "/")
	if len(one) < 2 || len(other) < 2 || one[0] != other[0] {
		return false
	}
	before, err := strconv.ParseUint(one[1], 10, 32)
	after, failed := strconv.ParseUint(other[1], 10, 32)
	return err == nil && failed == nil && before < after
}

// startOf is a run as people read it.
func startOf(run string) string {
	seconds, err := strconv.ParseFloat(run, 64)
	if err != nil {
		return run
	}
	return time.UnixMilli(int64(1000 * seconds)).UTC().Format("2006-01-02T15:04:05.000Z")
}

// upstream is connections to what should be the primary.
type upstream struct {
	pool       *pgxpool.Pool
	db         *Database
	renewed    atomic.Int64             // when connections were given up last, in nanoseconds since 1970
	identified atomic.Pointer[answerer] // the last server whose system and timeline were asked for
}

func (db *Database) upstream(pool *pgxpool.Pool) *upstream {
	return &upstream{pool: pool, db: db}
}

// fromPrimary reads by connections of the pool from the primary, of which is
// known which run of it is followed; empty = it is not. read also says who
// answered. After a fail-over connections may still lead to a server that was
// primary before, and does not know that it is no more: an answer that is
// refused is asked for once more, on connections made since.
func fromPrimary[T any](ctx context.Context, u *upstream, run string, read func() (T, answerer, error)) (T, error) {
	if err := u.awaitTimeline(ctx); err != nil {
		var none T
		return none, err
	}
	f := u.db.followed()
	f.Run = run
	got, by, err := read()
	if err == nil && u.check(ctx, f, by) != nil {
		u.renew()
		if got, by, err = read(); err == nil {
			err = u.check(ctx, f, by)
		}
	}
	u.db.refusals.note(err)
	if err != nil {
		var none T
		return none, err
	}
	return got, nil
}

// timelinePatience is how long a question waits for answers to be judged.
const timelinePatience = time.Second

func (u *upstream) awaitTimeline(ctx context.Context) error {
	known := u.db.options.TimelineKnown
	if known == nil {
		return nil
	}
	select {
	case <-known:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, timelinePatience)
	defer cancel()
	select {
	case <-known:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: it is not known yet which timeline the fleet follows", ErrUnavailable)
	}
}

// check returns why the answer is not taken for the primary's; nil if it is.
func (u *upstream) check(ctx context.Context, f Followed, by answerer) error {
	if f.needsServer() && !by.Standby {
		known := u.identified.Load()
		if known == nil || known.Run != by.Run {
			known = &answerer{}
			var r Replayed
			var err error
			if known.Run, err = scanReplayed(u.pool.QueryRow(ctx, primarySQL, pgx.QueryExecModeExec), &r); err != nil {
				return fmt.Errorf("%w: ask which server it is: %w", ErrUnavailable, err)
			}
			known.server = r.Server
			u.identified.Store(known)
		}
		if known.Run != by.Run { // two servers answer in turn
			return fmt.Errorf("%w: %s leads to several", ErrWrongServer, by.address)
		}
		by.server = known.server
	}
	if why := f.refuses(by); why != "" {
		return fmt.Errorf("%w: %s", ErrWrongServer, why)
	}
	return nil
}

// renew gives all connections up. While the address leads to the wrong server,
// new ones are no better: they are not made for every question.
func (u *upstream) renew() {
	now, last := time.Now().UnixNano(), u.renewed.Load()
	if now-last > int64(primaryRest) && u.renewed.CompareAndSwap(last, now) {
		u.pool.Reset()
	}
}

// refusals keeps why the answers of the primary's address are refused.
type refusals struct{ last atomic.Pointer[refusal] }

type refusal struct {
	why error
	at  time.Time
}

// refusedFor is how long nothing must have been refused before all is well again:
// servers may take turns.
const refusedFor = time.Second

// note keeps that an answer was refused (ErrWrongServer), or that one was not.
func (r *refusals) note(err error) {
	if errors.Is(err, ErrWrongServer) {
		r.last.Store(&refusal{err, time.Now()})
	} else if last := r.last.Load(); err == nil && last != nil && time.Since(last.at) > refusedFor {
		r.last.CompareAndSwap(last, nil)
	}
}

// WrongServer is why the answers of the primary's address are refused: another
// server gives them. nil = they are not.
func (db *Database) WrongServer() error {
	if last := db.refusals.last.Load(); last != nil {
		return last.why
	}
	return nil
}
