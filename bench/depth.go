package main

import (
	"context"
	"fmt"

	"listedge/internal/lists"
	"listedge/origin"
)

// depths are the pages whose time is plotted, from the first to the one that
// has a goal.
var depths = [...]int{1, 10, 100, 1000, deepPage}

// nearby is how many pages before and behind a depth may stand for it. Pages
// are up to 4 % longer or shorter than others, by what their rows happen to
// say, and cost as much more or less: what is compared with the first page is
// as long as the first.
const nearby = 8

// measureDepth compares pages deep in a list with its first.
func measureDepth(ctx context.Context, s *subject, r *report) error {
	o, end, err := s.openOrigin(ctx)
	if err != nil {
		return err
	}
	defer end()
	for _, sort := range []lists.Order{lists.ByCreatedAt, lists.ByName} {
		pages, err := atDepths(ctx, o, origin.Query{Workspace: s.workspace, Collection: lists.Items, Sort: sort, Limit: pageSize})
		if err != nil {
			return err
		}
		var sides []func() error
		for _, q := range pages {
			sides = append(sides, func() error { _, err := o.Fetch(ctx, q, ""); return err })
		}
		spent, err := alternate(sides...)
		if err != nil {
			return err
		}
		name := map[lists.Order]string{lists.ByCreatedAt: "createdAt", lists.ByName: "name"}[sort]
		for i, n := range depths {
			r.point("Depth: time per query, µs", "page", "by "+name, n, spent[i].wall)
		}
		r.ratio("page 2,000 by "+name+": time per query, µs, against page 1, of as many bytes", "%.1f", spent[len(spent)-1].wall, spent[0].wall, 1.1)
	}
	return nil
}

// atDepths walks a list and returns, for each depth, the query of a page there
// or nearby, of those the one whose length is nearest to the first page's.
func atDepths(ctx context.Context, o *origin.Origin, q origin.Query) (found [len(depths)]origin.Query, err error) {
	found[0] = q
	first := 0               // bytes of the first page
	var off [len(depths)]int // by how many what was found is longer or shorter
	for n := 1; n <= deepPage+nearby; n++ {
		page, err := o.Fetch(ctx, q, "")
		if err != nil {
			return found, err
		}
		if n == 1 {
			first = len(page.Body)
		}
		by := max(len(page.Body)-first, first-len(page.Body))
		for i := 1; i < len(depths); i++ {
			if begins := depths[i] - nearby; n == begins || n > begins && n <= depths[i]+nearby && by < off[i] {
				found[i], off[i] = q, by
			}
		}
		if q.After, err = q.ParseCursor([]byte(page.NextCursor)); err != nil {
			return found, fmt.Errorf("behind page %d: %w", n, err)
		}
	}
	return found, nil
}
