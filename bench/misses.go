package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/lists"
	"listedge/origin"
	"listedge/origin/postgres"
)

// nodeGCPercent is what a node with the default budget and few pages gives its
// collector: 16 MB of garbage at a time.
const nodeGCPercent = 400

// queriesInRound is how many queries one side makes before it is the other's turn.
const queriesInRound = 300

// measureMisses compares Fetch with the same statement by a pool of bare pgx, whose rows
// are thrown away. Both leave the collector as much garbage as a node does.
func measureMisses(ctx context.Context, s *subject, r *report) error {
	defer debug.SetGCPercent(debug.SetGCPercent(nodeGCPercent))
	o, end, err := s.openOrigin(ctx)
	if err != nil {
		return err
	}
	defer end()
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["options"] = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_sort=off -c jit=off"
	conn, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	query := origin.Query{Workspace: s.workspace, Collection: lists.Items, Limit: pageSize}
	fetch := fetches(ctx, o, query)[0]
	if err := fetch(); err != nil {
		return err
	}
	var statement string // as the server has heard it
	if err := conn.QueryRow(ctx, "SELECT query FROM pg_stat_activity WHERE application_name = 'listedge' AND datname = current_database() AND query LIKE $1", "%FROM "+postgres.Schema+".items%").Scan(&statement); err != nil {
		return fmt.Errorf("the statement of a page: %w", err)
	}
	workspace := pgtype.UUID{Bytes: s.workspace, Valid: true} // a uuid.UUID would go by way of its text
	bare := func(sql string) func() error {
		return func() error {
			rows, err := conn.Query(ctx, sql, workspace, pageSize+1)
			if err != nil {
				return err
			}
			for rows.Next() {
			}
			return rows.Err()
		}
	}
	spent, err := alternate(fetch, bare(statement))
	if err != nil {
		return err
	}
	ours, same := spent[0], spent[1]
	r.ratio("miss, 50 items: CPU per query, µs, against the same statement by bare pgx", "%.1f", ours.cpu, same.cpu, 1.15)
	r.ratio("miss, 50 items: time per query, µs, against the same statement by bare pgx", "%.1f", ours.wall, same.wall, 0)
	return nil
}

// perQuery is the cost of one query, in microseconds: of the median round.
type perQuery struct{ cpu, wall float64 }

// queryRounds are counted of each side; odd, so that one is the median.
const queryRounds = 2*rounds + 1

// alternate runs the sides in turn, the first round of each unmeasured.
func alternate(sides ...func() error) ([]perQuery, error) {
	cpu, wall := make([][]time.Duration, len(sides)), make([][]time.Duration, len(sides))
	for r := range queryRounds + 1 {
		for i, side := range sides {
			began, used := time.Now(), ownCPU()
			for range queriesInRound {
				if err := side(); err != nil {
					return nil, err
				}
			}
			if r > 0 {
				cpu[i] = append(cpu[i], ownCPU()-used)
				wall[i] = append(wall[i], time.Since(began))
			}
		}
	}
	each := make([]perQuery, len(sides))
	for i := range each {
		each[i] = perQuery{percentile(cpu[i], 0.5) * 1000 / queriesInRound, percentile(wall[i], 0.5) * 1000 / queriesInRound}
	}
	return each, nil
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
