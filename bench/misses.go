package main

import (
	"context"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/origin"
)

// nodeGCPercent is what a node with the default budget and few pages gives its
// collector: 16 MB of garbage at a time.
const nodeGCPercent = 400

// queriesInRound is how many queries one side makes before it is the other's turn.
const queriesInRound = 300

// measureMisses compares Fetch with the same kind of query by bare pgx, whose
// rows are thrown away. Both leave the collector as much garbage as a node does.
func measureMisses(ctx context.Context, s *subject, r *report) error {
	defer debug.SetGCPercent(debug.SetGCPercent(nodeGCPercent))
	db, err := origin.Open(ctx, origin.DatabaseOptions{URL: s.url, Connections: 1, QueryTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(context.Background()) }()
	o := origin.New(db)
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	for _, setting := range []string{"plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_sort = off", "jit = off"} {
		if _, err := conn.Exec(ctx, "SET "+setting); err != nil {
			return err
		}
	}
	query := origin.Query{Workspace: s.workspace, Collection: origin.Items, Limit: pageSize}
	fetch := func() error {
		_, err := o.Fetch(ctx, query)
		return err
	}
	var list []string
	for _, c := range origin.Items.Columns() {
		if !c.Hidden {
			list = append(list, c.Name)
		}
	}
	sql := "SELECT " + strings.Join(list, ", ") + " FROM items WHERE workspace_id = $1 AND active ORDER BY created_at DESC, id DESC LIMIT 51"
	bare := func() error {
		rows, err := conn.Query(ctx, sql, s.workspace)
		if err != nil {
			return err
		}
		for rows.Next() {
		}
		return rows.Err()
	}
	ours, theirs, err := alternate(fetch, bare)
	if err != nil {
		return err
	}
	r.ratio("miss, 50 items: CPU per query, µs, against bare pgx", "%.1f", ours.cpu, theirs.cpu, 1.15)
	r.ratio("miss, 50 items: time per query, µs, against bare pgx", "%.1f", ours.wall, theirs.wall, 0)
	return nil
}

// measureDepth compares page 2,000 of a list with its first.
func measureDepth(ctx context.Context, s *subject, r *report) error {
	db, err := origin.Open(ctx, origin.DatabaseOptions{URL: s.url, Connections: 1, QueryTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(context.Background()) }()
	o := origin.New(db)
	for _, sort := range []origin.Sort{origin.ByCreatedAt, origin.ByName} {
		first := origin.Query{Workspace: s.workspace, Collection: origin.Items, Sort: sort, Limit: pageSize}
		deep := first
		for range deepPage - 1 {
			page, err := o.Fetch(ctx, deep)
			if err != nil {
				return err
			}
			if deep.After, err = deep.ParseCursor([]byte(page.NextCursor)); err != nil {
				return err
			}
		}
		ours, theirs, err := alternate(
			func() error { _, err := o.Fetch(ctx, deep); return err },
			func() error { _, err := o.Fetch(ctx, first); return err })
		if err != nil {
			return err
		}
		name := map[origin.Sort]string{origin.ByCreatedAt: "createdAt", origin.ByName: "name"}[sort]
		r.ratio("page 2,000 by "+name+": time per query, µs, against page 1", "%.1f", ours.wall, theirs.wall, 1.1)
	}
	return nil
}

// perQuery is the mean cost of one query, in microseconds.
type perQuery struct{ cpu, wall float64 }

// alternate runs both sides in turn, the first round of each unmeasured.
func alternate(a, b func() error) (ours, theirs perQuery, err error) {
	var spent [2]struct{ cpu, wall time.Duration }
	for r := range rounds + 1 {
		for i, side := range []func() error{a, b} {
			began, used := time.Now(), ownCPU()
			for range queriesInRound {
				if err := side(); err != nil {
					return ours, theirs, err
				}
			}
			if r > 0 {
				spent[i].cpu += ownCPU() - used
				spent[i].wall += time.Since(began)
			}
		}
	}
	const n = rounds * queriesInRound
	return perQuery{micros(spent[0].cpu, n), micros(spent[0].wall, n)}, perQuery{micros(spent[1].cpu, n), micros(spent[1].wall, n)}, nil
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
