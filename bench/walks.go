package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// rowEvery is how often a row comes in at the head while the list is walked.
const rowEvery = time.Second

// walksTime is how long it is walked again and again.
const walksTime = 40 * time.Second

// measureWalks tells how many pages of a list that is walked again and again cost no
// query, while a row a second comes in at its head: each one moves every later page by
// a row. And what the first walk costs.
func measureWalks(ctx context.Context, s *subject, r *report) error {
	node := must1(s.startFollower(ctx, "--cache-memory", "512MiB"))
	defer node.end()
	defer func() {
		_, _ = s.db.Exec(context.Background(), "DELETE FROM items WHERE workspace_id = $1 AND name = 'New at the head'", s.workspace)
	}()
	insert := func(ctx context.Context) error {
		_, err := s.db.Exec(ctx, "INSERT INTO items (workspace_id, name, created_at) "+
			"VALUES ($1, 'New at the head', clock_timestamp() + interval '50 years')", s.workspace)
		return err
	}
	walker := node.client(s.key)
	count := func(again func(walks int) bool, each func() error) (by map[string]int, cpu float64, err error) {
		by = map[string]int{}
		pages := 0
		used, err := node.spent(func() (failed error) {
			for walks := 0; again(walks) && failed == nil; walks++ {
				err := walker.follow(ctx, deepPage, func(_ string, _ []byte, status string) {
					by[status]++
					pages++
					failed = errors.Join(failed, each())
				})
				failed = errors.Join(failed, err)
			}
			return failed
		})
		return by, micros(used, pages), err
	}
	times := func(n int) (map[string]int, float64, error) {
		return count(func(walks int) bool { return walks < n }, func() error { return nil })
	}
	before := node.metric(fetched)
	must2(times(1)) // fills memory
	r.atMost(fmt.Sprintf("the first walk of %d pages: statements", deepPage), "%.0f", node.metric(fetched)-before, deepPage*11/40)
	_, hits := must2(times(3))
	must(insert(ctx))
	time.Sleep(rowEvery) // the node has it
	moved, anew := must2(times(1))
	r.figure(fmt.Sprintf("a walk of %d pages behind a new row: pages without a query", deepPage),
		fmt.Sprintf("%.2f %%", 100-share(of(moved, "fwd="), of(moved, ""))), "")
	r.ratio("a page of a walk behind a new row, against one that did not change: CPU per page, µs", "%.0f", anew, hits, 0)

	rows, began := 0, time.Now()
	by, cpu, err := count(func(int) bool { return time.Since(began) < walksTime }, func() error {
		if time.Since(began) < time.Duration(rows+1)*rowEvery {
			return nil
		}
		rows++
		return insert(ctx)
	})
	if err != nil {
		return err
	}
	pages := of(by, "")
	without := 100 - share(of(by, "fwd="), pages)
	r.aim(fmt.Sprintf("%d pages walked again and again, %d new rows at the head in %s: pages without a query", deepPage, rows, walksTime),
		fmt.Sprintf("%.2f %% of %d", without, pages), "≥ 99.9 %", without >= 99.9)
	r.figure("CPU per page of these, µs", fmt.Sprintf("%.0f", cpu), "")
	return nil
}

// of is how many answers have a Cache-Status that contains the text.
func of(by map[string]int, text string) (n int) {
	for status, count := range by {
		if strings.Contains(status, text) {
			n += count
		}
	}
	return n
}
