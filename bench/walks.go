package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// rowEvery is how often a row comes in at the head while the list is walked.
const rowEvery = time.Second

// walksTime is how long it is walked again and again.
const walksTime = 40 * time.Second

// measureWalks tells how many pages of a list that is walked again and again cost no
// query, while a row a second comes in at its head: each one moves every later page by
// a row. And what a page costs that is joined of pages in memory.
func measureWalks(ctx context.Context, s *subject, r *report) error {
	node, err := s.startFollower(ctx, "--cache-memory", "512MiB")
	if err != nil {
		return err
	}
	defer node.end()
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	defer func() {
		_, _ = conn.Exec(context.Background(), "DELETE FROM items WHERE workspace_id = $1 AND name = 'New at the head'", s.workspace)
	}()
	insert := func(ctx context.Context) error {
		_, err := conn.Exec(ctx, "INSERT INTO items (workspace_id, name, created_at) VALUES ($1, 'New at the head', clock_timestamp() + interval '50 years')", s.workspace)
		return err
	}
	walker := node.client(s.key)
	count := func(walks int) (by map[string]int, cpu float64, err error) {
		by = map[string]int{}
		pages := 0
		used, err := node.spent(func() error {
			for range walks {
				if err := walker.follow(ctx, deepPage, func(_ string, _ []byte, status string) { by[status]++; pages++ }); err != nil {
					return err
				}
			}
			return nil
		})
		return by, micros(used, pages), err
	}
	if _, _, err := count(1); err != nil { // fills memory
		return err
	}
	_, hits, err := count(3)
	if err != nil {
		return err
	}
	if err := insert(ctx); err != nil {
		return err
	}
	time.Sleep(rowEvery) // the node has it
	firstJoined, joined, err := count(1)
	if err != nil {
		return err
	}
	walker.fresh = true
	_, queries, err := count(1)
	if err != nil {
		return err
	}
	walker.fresh = false
	r.figure(fmt.Sprintf("a walk of %d pages behind a new row: pages joined", deepPage), shareOf(firstJoined, "joined"), "")
	r.ratio("a page of a walk, joined, against one that is a hit: CPU per page, µs", "%.0f", joined, hits, 0)
	r.ratio("a page of a walk, joined, against one that is read: CPU of the node per page, µs", "%.0f", joined, queries, 1)

	writing, stop := context.WithTimeout(ctx, walksTime)
	defer stop()
	var writer sync.WaitGroup
	var failed error
	rows := 0
	writer.Go(func() {
		for {
			select {
			case <-writing.Done():
				return
			case <-time.After(rowEvery):
				if err := insert(ctx); err != nil {
					failed = err
					return
				}
				rows++
			}
		}
	})
	by := map[string]int{}
	used, err := node.spent(func() (err error) {
		for err == nil && writing.Err() == nil {
			err = walker.follow(ctx, deepPage, func(_ string, _ []byte, status string) { by[status]++ })
		}
		return err
	})
	writer.Wait()
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	pages, asked := 0, 0
	for status, n := range by {
		if pages += n; strings.Contains(status, "fwd=") {
			asked += n
		}
	}
	r.figure(fmt.Sprintf("%d pages walked again and again, %d new rows at the head in %s: pages without a query", deepPage, rows, walksTime),
		fmt.Sprintf("%.2f %% of %d", 100*(1-float64(asked)/float64(pages)), pages), "≥ 95 %")
	r.figure("of these, joined; CPU per page, µs", fmt.Sprintf("%s; %.0f", shareOf(by, "joined"), micros(used, pages)), "")
	different, err := s.compareWalk(ctx, node)
	if err != nil {
		return err
	}
	r.figure(fmt.Sprintf("afterwards, pages of %d that differ from the database's", deepPage), fmt.Sprint(different), "0")
	return nil
}

// shareOf is the part of the answers whose Cache-Status contains the text.
func shareOf(by map[string]int, text string) string {
	all, n := 0, 0
	for status, count := range by {
		if all += count; strings.Contains(status, text) {
			n += count
		}
	}
	return fmt.Sprintf("%.2f %%", 100*float64(n)/float64(max(all, 1)))
}

// compareWalk counts the pages of a walk that differ from the same ones read anew.
func (s *subject) compareWalk(ctx context.Context, node *server) (different int, err error) {
	anew := node.client(s.key)
	anew.fresh = true
	var failed error
	err = node.client(s.key).follow(ctx, deepPage, func(path string, body []byte, _ string) {
		want, _, err := anew.get(path, "identity")
		failed = errors.Join(failed, err)
		if id := []byte(`,"requestId":`); !bytes.Equal(body[:max(0, bytes.Index(body, id))], want[:max(0, bytes.Index(want, id))]) {
			different++
		}
	})
	return different, errors.Join(err, failed)
}
