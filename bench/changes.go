package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// What following changes costs nodes that have no requests: processor time of the
// follower, of a node that only reads the log, and of Redis.

const (
	changesRate    = 1000            // transactions a second, of one row each
	changesTime    = 5 * time.Second // of each measurement
	changesWriters = 16
	changesRows    = 10_000
)

func measureChanges(ctx context.Context, s *subject, r *report) error {
	f, err := startFleet(ctx, s, 2)
	if err != nil {
		return err
	}
	defer f.end()
	if f.nodes[0].metric("listedge_freshness_follower") != 1 {
		f.nodes[0], f.nodes[1] = f.nodes[1], f.nodes[0]
	}
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	found, err := conn.Query(ctx, "SELECT id FROM items WHERE workspace_id = $1 LIMIT $2", s.workspace, changesRows)
	if err != nil {
		return err
	}
	rows, err := pgx.CollectRows(found, pgx.RowTo[uuid.UUID])
	if err != nil {
		return err
	}
	const rename = "UPDATE items SET name = left(name, 30) || ' ' || $2::int % 1000 WHERE id = $1 AND workspace_id = $3"
	cases := []struct {
		name, sql string
		rate      float64
	}{{"no changes", "", 0}, {"stock, random rows", changeStock, changesRate}, {"renames of random rows", rename, changesRate}}
	t := r.table(fmt.Sprintf("%d changes/s, each of one row, and no requests: processor time in %% of a core", changesRate),
		"change", "changes/s", "follower", "… more than without changes", "node that only reads the log", "… more", "Redis", "… more")
	var idle changesCost
	for _, c := range cases {
		cost, err := f.changesSpent(ctx, func(ctx context.Context) (int, error) { return s.write(ctx, rows, c.sql, c.rate) })
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if c.rate == 0 {
			idle = cost
		}
		cells := []string{c.name, fmt.Sprintf("%.0f", float64(cost.changes)/changesTime.Seconds())}
		for of, used := range cost.used {
			percent := func(d time.Duration) string { return fmt.Sprintf("%.1f", 100*d.Seconds()/changesTime.Seconds()) }
			cells = append(cells, percent(used), percent(used-idle.used[of]))
		}
		t.add(cells...)
	}
	return nil
}

// changesCost is the processor time of the follower, the other node and Redis.
type changesCost struct {
	changes int
	used    [3]time.Duration
}

// changesSpent measures what is used for changesTime while do runs.
func (f *followingFleet) changesSpent(ctx context.Context, do func(context.Context) (changes int, err error)) (c changesCost, err error) {
	read := func() (used [3]time.Duration, err error) {
		for i, n := range f.nodes {
			if used[i], err = n.cpu(); err != nil {
				return used, err
			}
		}
		used[2], err = cpuOfRedis(ctx, f.redis.Addr())
		return used, err
	}
	before, err := read()
	if err != nil {
		return c, err
	}
	ends, cancel := context.WithTimeout(ctx, changesTime)
	defer cancel()
	if c.changes, err = do(ends); err != nil {
		return c, err
	}
	<-ends.Done()
	after, err := read()
	for i := range c.used {
		c.used[i] = after[i] - before[i]
	}
	return c, err
}

// write commits changes of the rows at the rate until ctx ends; 0 = none.
func (s *subject) write(ctx context.Context, rows []uuid.UUID, sql string, perSecond float64) (changes int, err error) {
	if perSecond == 0 {
		return 0, nil
	}
	var next atomic.Int64
	errs := make([]error, changesWriters)
	began := time.Now()
	var writers sync.WaitGroup
	for w := range changesWriters {
		writers.Go(func() {
			conn, err := pgx.Connect(context.WithoutCancel(ctx), s.url)
			if err != nil {
				errs[w] = err
				return
			}
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				n := next.Add(1)
				time.Sleep(time.Until(began.Add(time.Duration(float64(n) / perSecond * float64(time.Second)))))
				if _, errs[w] = conn.Exec(context.WithoutCancel(ctx), sql, rows[rand.IntN(len(rows))], n, s.workspace); errs[w] != nil {
					return
				}
			}
		})
	}
	writers.Wait()
	return int(next.Load()), errors.Join(errs...)
}
