package main

import (
	"context"
	"fmt"

	"listedge/internal/lists"
	"listedge/origin"
)

// nearby is how many pages before and behind the deep page may stand for it. Pages
// are up to 4 % longer or shorter than others, by what their rows happen to
// say, and cost as much more or less: what is compared with the first page is
// as long as the first.
const nearby = 8

// measureDepth compares a page deep in a list with its first.
func measureDepth(ctx context.Context, s *subject, r *report) error {
	o, end, err := s.openOrigin(ctx)
	if err != nil {
		return err
	}
	defer end()
	for name, sort := range map[string]lists.Order{"createdAt": lists.ByCreatedAt, "name": lists.ByName} {
		first := origin.Query{Workspace: s.workspace, Collection: lists.Items, Sort: sort, Limit: pageSize}
		deep, err := deepQuery(ctx, o, first)
		if err != nil {
			return err
		}
		spent, err := alternate(fetches(ctx, o, first, deep)...)
		if err != nil {
			return err
		}
		r.ratio("page 2,000 by "+name+": time per query, µs, against page 1, of as many bytes", "%.1f", spent[1].wall, spent[0].wall, 1.1)
	}
	return nil
}

// fetches are the reads of some pages.
func fetches(ctx context.Context, o *origin.Origin, queries ...origin.Query) (reads []func() error) {
	for _, q := range queries {
		reads = append(reads, func() error { _, err := o.Fetch(ctx, q, ""); return err })
	}
	return reads
}

// deepQuery walks a list and returns the query of the deep page or of one nearby: the
// one whose length is nearest to the first page's.
func deepQuery(ctx context.Context, o *origin.Origin, q origin.Query) (found origin.Query, err error) {
	first, off := 0, 0 // bytes of the first page; by how many what was found is longer or shorter
	for n := 1; n <= deepPage+nearby; n++ {
		page, err := o.Fetch(ctx, q, "")
		if err != nil {
			return found, err
		}
		if n == 1 {
			first = len(page.Body)
		}
		by := max(len(page.Body)-first, first-len(page.Body))
		if n == deepPage-nearby || n > deepPage-nearby && by < off {
			found, off = q, by
		}
		if q.After, err = q.ParseCursor([]byte(page.NextCursor)); err != nil {
			return found, fmt.Errorf("behind page %d: %w", n, err)
		}
	}
	return found, nil
}
