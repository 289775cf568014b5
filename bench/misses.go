package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// nodeGCPercent is what a node with the default budget and few pages gives its
// collector: 16 MB of garbage at a time.
const nodeGCPercent = 400

// queriesInRound is how many queries one side makes before it is the other's turn.
const queriesInRound = 300

// plainItem is a row as a plain handler reads and shows it. The first row of the statement has
// only the read point.
type plainItem struct {
	ReadPoint          *string        `json:"-"`
	ID                 pgtype.UUID    `json:"id"`
	Name               *string        `json:"name"`
	Type               *string        `json:"type"`
	SKU                *string        `json:"sku"`
	Description        *string        `json:"description"`
	Unit               *string        `json:"unit"`
	ImagePath          *string        `json:"imagePath"`
	PreferredContactID pgtype.UUID    `json:"preferredContactId"`
	CostPrice          pgtype.Numeric `json:"costPrice"`
	AvgCost            pgtype.Numeric `json:"avgCost"`
	SellingPrice       pgtype.Numeric `json:"sellingPrice"`
	Taxable            *bool          `json:"taxable"`
	TrackStock         *bool          `json:"trackStock"`
	StockOnHand        pgtype.Numeric `json:"stockOnHand"`
	ReorderPoint       pgtype.Numeric `json:"reorderPoint"`
	Usage30            pgtype.Numeric `json:"usage30"`
	CreatedAt          *time.Time     `json:"createdAt"`
}

// measureMisses compares Fetch with the same statement by a pool of bare pgx: once its rows are
// thrown away, and once they become structs and JSON. All leave the collector as much garbage as a node does.
func measureMisses(ctx context.Context, s *subject, r *report) error {
	defer debug.SetGCPercent(debug.SetGCPercent(nodeGCPercent))
	o, end := must2(s.openOrigin(ctx))
	defer end()
	config := must1(pgxpool.ParseConfig(s.url))
	config.ConnConfig.RuntimeParams["options"] = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_sort=off -c jit=off"
	conn := must1(pgxpool.NewWithConfig(ctx, config))
	defer conn.Close()
	q := firstPage(s.workspace)
	fetch := fetches(ctx, o, q)[0]
	must(fetch())
	var statement string // as the server has heard it
	if err := conn.QueryRow(ctx, "SELECT query FROM pg_stat_activity WHERE application_name = 'listedge' AND datname = current_database() AND query LIKE $1",
		"%FROM "+q.List.Table.SQL()+"%").Scan(&statement); err != nil {
		return fmt.Errorf("the statement of a page: %w", err)
	}
	query := func(read func(pgx.Rows) error) func() error {
		return func() error {
			rows, _ := conn.Query(ctx, statement, s.workspace.String(), strconv.Itoa(pageSize+1)) // rows have the error
			return read(rows)
		}
	}
	dropped := query(func(rows pgx.Rows) error {
		for rows.Next() {
		}
		return rows.Err()
	})
	plain := query(func(rows pgx.Rows) error {
		items, err := pgx.CollectRows(rows, pgx.RowToStructByPos[plainItem])
		if err == nil {
			_, err = json.Marshal(items)
		}
		return err
	})
	spent := must1(alternate(fetch, dropped, plain))
	for i, against := range []string{"the same statement by bare pgx, its rows dropped", "the same statement by pgx and encoding/json, as structs"} {
		r.ratio("miss, 50 items: CPU per query, µs, against "+against, "%.1f", spent[0].cpu, spent[i+1].cpu, 1.15)
		r.ratio("miss, 50 items: time per query, µs, against "+against, "%.1f", spent[0].wall, spent[i+1].wall, 0)
	}
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
