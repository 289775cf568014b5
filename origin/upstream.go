package origin

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/origin/postgres"
)

// upstream is one Postgres that pages are read from.
type upstream struct {
	pool    *pgxpool.Pool
	queue   *fairQueue
	breaker postgres.Breaker
}

func newUpstream(breaker postgres.Breaker, pool *pgxpool.Pool) upstream {
	return upstream{pool, newFairQueue(int(pool.Config().MaxConns)), breaker}
}

// serve runs a workspace's query when it is its turn, unless the server keeps
// failing.
func (u *upstream) serve(ctx context.Context, workspace uuid.UUID, query func() error) error {
	began, err := u.queue.enter(ctx, workspace)
	if err != nil {
		return err
	}
	defer u.queue.leave(workspace, began)
	return u.breaker.Do(query)
}
