package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Primary is connections to an address that should lead to the primary.
type Primary struct {
	Pool *pgxpool.Pool

	db      *Database
	reset   atomic.Int64           // when all connections were closed last, in nanoseconds since 1970
	checked atomic.Pointer[Server] // the last one whose timeline was read
}

// Read reads from the primary. read reads by connections of the pool, and returns
// which server answered. incarnation is the primary's, as far as it is proven;
// empty = it is not.
//
// After a fail-over connections may still lead to the old primary, which does not
// know that it is none. An answer that is refused is read once more, on new
// connections.
func (p *Primary) Read(ctx context.Context, incarnation string, read func() (Server, error)) error {
	if err := p.awaitTimeline(ctx); err != nil {
		return err
	}
	f := p.db.Followed()
	f.Incarnation = incarnation
	by, err := read()
	if err == nil && p.check(ctx, f, by) != nil {
		p.resetPool()
		if by, err = read(); err == nil {
			err = p.check(ctx, f, by)
		}
	}
	p.db.noteAnswer(err)
	return err
}

// timelineTimeout is how long a query waits for Options.TimelineKnown.
const timelineTimeout = time.Second

func (p *Primary) awaitTimeline(ctx context.Context) error {
	known := p.db.Options.TimelineKnown
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

// check returns ErrWrongServer if the answer is not the primary's. A server's
// timeline is read once, where it matters.
func (p *Primary) check(ctx context.Context, f Followed, by Server) error {
	if f.needsTimeline() && !by.Standby {
		checked := p.checked.Load()
		if checked == nil || checked.Incarnation != by.Incarnation {
			position, err := ScanWALPosition(p.Pool.QueryRow(ctx, PrimarySQL, pgx.QueryExecModeExec))
			if err != nil {
				return fmt.Errorf("%w: read the server's timeline: %w", ErrUnavailable, err)
			}
			checked = &Server{Incarnation: position.Incarnation, timeline: position.Timeline}
			p.checked.Store(checked)
		}
		if checked.Incarnation != by.Incarnation { // two servers answer in turn
			return fmt.Errorf("%w: %s leads to several", ErrWrongServer, by.address)
		}
		by.timeline = checked.timeline
	}
	if why := f.refuses(by); why != "" {
		return fmt.Errorf("%w: %s", ErrWrongServer, why)
	}
	return nil
}

// resetPool closes all connections, at most once a cooldown: while the address
// leads to the wrong server, new ones are no better.
func (p *Primary) resetPool() {
	now, last := time.Now().UnixNano(), p.reset.Load()
	if now-last > int64(PrimaryCooldown) && p.reset.CompareAndSwap(last, now) {
		p.Pool.Reset()
	}
}
