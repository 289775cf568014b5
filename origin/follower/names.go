package follower

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/origin/postgres"
)

const (
	// namesTimeout bounds reading the order of names: on a busy server it takes many
	// times its 50 ms, and nothing waits for it.
	namesTimeout = 30 * time.Second
	// namesEvery is the pause after it could not be read.
	namesEvery = 5 * time.Second
)

// nameReader reads the order of names beside a term, by a connection of its own, so
// that heartbeats do not wait for it. Until it is known, and where it cannot be read,
// changes name rows without keys of their names.
type nameReader struct {
	found  chan postgres.NameOrder // gets one, or none
	cancel context.CancelFunc
	done   chan struct{}
}

func (p *primary) readNames(ctx context.Context, logger *slog.Logger) *nameReader {
	ctx, cancel := context.WithCancel(ctx)
	r := &nameReader{found: make(chan postgres.NameOrder, 1), cancel: cancel, done: make(chan struct{})}
	config := p.config.Copy()
	config.ConnectTimeout = namesTimeout
	go func() {
		defer close(r.done)
		for logged := false; ctx.Err() == nil; logged = true {
			order, err := readNames(ctx, config)
			if err == nil {
				r.found <- order
				return
			}
			if ctx.Err() == nil && !logged {
				logger.Warn("changes invalidate more pages by name than necessary: the order of names cannot be read", "error", err)
			}
			if errors.Is(err, postgres.ErrNameOrder) { // a change of the schema has it read again
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(namesEvery):
			}
		}
	}()
	return r
}

func readNames(ctx context.Context, config *pgx.ConnConfig) (postgres.NameOrder, error) {
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return postgres.NameOrder{}, err
	}
	defer closeConn(conn.PgConn())
	return postgres.ReadNameOrder(ctx, conn)
}

// stop ends the reading and waits for that.
func (r *nameReader) stop() {
	r.cancel()
	<-r.done
}

// readNames begins to read the order of names, which is not known until then.
func (t *term) readNames(ctx context.Context) {
	t.stopNames()
	t.decoder.names = postgres.NameOrder{}
	t.names = t.primary.readNames(ctx, t.options.Logger)
}

// takeNames uses the order as soon as it has been read.
func (t *term) takeNames() {
	select {
	case t.decoder.names = <-t.names.found:
	default:
	}
}

func (t *term) stopNames() {
	if t.names != nil {
		t.names.stop()
	}
}
