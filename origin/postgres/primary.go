package postgres

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

// Server identifies the server that gave an answer, as the answer itself says.
type Server struct {
	StartedAt string // when it was started, by its own clock
	Standby   bool   // it was in recovery
	Database  string // its name
	address   net.Addr
	timeline  Timeline
}

// ParseServer reads what ServerSQL rendered on the connection.
func ParseServer(text string, conn *pgx.Conn) Server {
	run, rest, _ := strings.Cut(text, "@")
	role, database, _ := strings.Cut(rest, "@")
	return Server{StartedAt: run, Standby: role == "standby", Database: database, address: conn.PgConn().Conn().RemoteAddr()}
}

// Followed is what is known about the primary that the fleet follows.
type Followed struct {
	StartedAt string   // when it was started; empty = there is no proof at the moment
	Timeline  Timeline // the newest; number 0 = the fleet has never followed a primary
	Database  string   // its name; empty = not known
}

// refuses returns why an answer is not accepted as the primary's; empty = it is
// accepted.
//
// Invariant, in every mode: an accepted answer never comes
//   - from a server in recovery: its snapshot does not say which changes it lacks;
//   - from another database than the fleet's: a pooler may lead to another one on the
//     same server;
//   - from another run than the followed one, while there is a proof: it may be an old
//     primary that still runs;
//   - from an earlier timeline of the system that was followed last: a promotion has
//     ended that timeline.
//
// A restarted primary, a later timeline and another system are accepted as soon as there
// is no proof about the old run: a freshness bound after its last heartbeat. So neither a
// restart nor a failover needs an exception. In a split brain, all nodes that have ever
// followed the later timeline refuse the earlier one.
func (f Followed) refuses(by Server) string {
	switch {
	case by.Standby: // mutation: a standby's answer is the primary's
		return fmt.Sprintf("%s is a standby", by.address)
	case f.Database != "" && by.Database != f.Database:
		return fmt.Sprintf("%s is database %s, and not %s", by.address, by.Database, f.Database)
	case f.StartedAt != "" && by.StartedAt != f.StartedAt:
		return fmt.Sprintf("%s, started %s, is not the server that is followed: %s, started %s", by.address, startOf(by.StartedAt), f.Timeline, startOf(f.StartedAt))
	case f.needsTimeline() && by.timeline.endedBy(f.Timeline):
		return fmt.Sprintf("%s is %s (system/timeline), which a promotion has ended: %s was followed since", by.address, by.timeline, f.Timeline)
	}
	return ""
}

// needsTimeline says whether refuses depends on the server's timeline.
func (f Followed) needsTimeline() bool { return f.StartedAt == "" && f.Timeline.Number > 0 }

// startOf formats a run as a time.
func startOf(run string) string {
	seconds, err := strconv.ParseFloat(run, 64)
	if err != nil {
		return run
	}
	return time.UnixMilli(int64(1000 * seconds)).UTC().Format("2006-01-02T15:04:05.000Z")
}

// address is what the pools of a Database know of the primary's address: which server is
// expected there, and whether another one answers.
type address struct {
	timelineKnown <-chan struct{} // Options.TimelineKnown
	follow        atomic.Pointer[func() Followed]
	refusal       atomic.Pointer[refusal] // the last one
}

// Follow sets what Followed calls.
func (a *address) Follow(followed func() Followed) { a.follow.Store(&followed) }

// Followed is what is known of the primary that the fleet follows.
func (a *address) Followed() Followed {
	if followed := a.follow.Load(); followed != nil {
		return (*followed)()
	}
	return Followed{}
}

// refusal is why an answer of the primary's address was refused, and when.
type refusal struct {
	why error
	at  time.Time
}

// refusedFor is how long no answer must have been refused before WrongServer is
// nil again: one address may lead to several servers in turn.
const refusedFor = time.Second

// WrongServer is why the answers of the primary's address are refused: another
// server gives them. nil = they are not.
func (a *address) WrongServer() error {
	if last := a.refusal.Load(); last != nil {
		return last.why
	}
	return nil
}

// noteAnswer keeps for WrongServer what Primary.Read returned.
func (a *address) noteAnswer(err error) {
	if errors.Is(err, ErrWrongServer) {
		a.refusal.Store(&refusal{err, time.Now()})
	} else if last := a.refusal.Load(); err == nil && last != nil && time.Since(last.at) > refusedFor {
		a.refusal.CompareAndSwap(last, nil)
	}
}

// Primary reads through a pool of connections whose address should lead to the primary.
// It checks that it does.
type Primary struct {
	Pool *pgxpool.Pool

	address *address
	reset   atomic.Int64           // when resetPool last closed all connections, in nanoseconds since 1970
	checked atomic.Pointer[Server] // the last server whose timeline was read
}

// Read reads from the primary. The function read uses connections of the pool and
// returns which server answered. run is the run of the primary that is known from a
// proof; empty = there is no proof at the moment.
//
// After a failover, connections may still lead to the old primary, which may not know
// that it was replaced. If an answer is refused, Read reads once more on new
// connections.
func (p *Primary) Read(ctx context.Context, run string, read func() (Server, error)) error {
	if err := p.awaitTimeline(ctx); err != nil { // mutation: answers are taken before they can be judged
		return err
	}
	f := p.address.Followed()
	f.StartedAt = run
	by, err := read()
	if err == nil && p.check(ctx, f, by) != nil {
		p.resetPool()
		if by, err = read(); err == nil {
			err = p.check(ctx, f, by) // mutation: the second answer is the primary's
		}
	}
	p.address.noteAnswer(err)
	return err
}

// Write writes in one transaction, whatever settings the role or a pooler has. Whether the server
// is the followed primary is asked first, because a write cannot be refused afterwards.
func (p *Primary) Write(ctx context.Context, timeout time.Duration, write func(pgx.Tx) error) error {
	err := p.Read(ctx, p.address.Followed().StartedAt, func() (by Server, err error) {
		conn, err := p.Pool.Acquire(ctx)
		if err != nil {
			return by, err
		}
		defer conn.Release()
		var text string
		err = conn.QueryRow(ctx, `SELECT `+ServerSQL, pgx.QueryExecModeExec).Scan(&text)
		return ParseServer(text, conn.Conn()), err
	})
	if err == nil {
		// mutation: a read-only role writes nothing
		err = pgx.BeginTxFunc(ctx, p.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, WriteSettings(timeout).Local(), pgx.QueryExecModeExec); err != nil {
				return err
			}
			return write(tx)
		})
	}
	return Classify(err)
}

// timelineTimeout is how long a query waits for Options.TimelineKnown.
const timelineTimeout = time.Second

func (p *Primary) awaitTimeline(ctx context.Context) error {
	known := p.address.timelineKnown
	if known == nil {
		return nil
	}
	select {
	case <-known:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, timelineTimeout)
	defer cancel()
	select {
	case <-known:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: it is not known yet which timeline the fleet follows", ErrUnavailable)
	}
}

// check returns ErrWrongServer if the answer is not accepted as the primary's. It reads
// a server's timeline once, and only if refuses needs it.
func (p *Primary) check(ctx context.Context, f Followed, by Server) error {
	if f.needsTimeline() && !by.Standby {
		checked := p.checked.Load()
		if checked == nil || checked.StartedAt != by.StartedAt {
			position, err := ScanWALPosition(p.Pool.QueryRow(ctx, PrimarySQL, pgx.QueryExecModeExec))
			if err != nil {
				return fmt.Errorf("%w: read the server's timeline: %w", ErrUnavailable, err)
			}
			checked = &Server{StartedAt: position.StartedAt, timeline: position.Timeline}
			p.checked.Store(checked)
		}
		if checked.StartedAt != by.StartedAt { // the address leads to several servers
			return fmt.Errorf("%w: %s leads to several", ErrWrongServer, by.address)
		}
		by.timeline = checked.timeline
	}
	if why := f.refuses(by); why != "" {
		return fmt.Errorf("%w: %s", ErrWrongServer, why)
	}
	return nil
}

// resetPool closes all connections, at most once in a cooldown. While the address leads
// to the wrong server, new connections would lead there, too.
func (p *Primary) resetPool() {
	now, last := time.Now().UnixNano(), p.reset.Load()
	if now-last > int64(PrimaryCooldown) && p.reset.CompareAndSwap(last, now) { // mutation: each query makes connections
		p.Pool.Reset()
	}
}
