package main

import (
	"context"
	"fmt"

	"listedge/internal/page"
	"listedge/origin"
)

// nearby is how many pages before and behind the deep page may stand for it. Pages
// are up to 4 % longer or shorter than others, by what their rows happen to
// say, and cost as much more or less: what is compared with the second page is
// as long as the second. (The first is not: its statement reads no pages behind it.)
const nearby = 8

// measureDepth compares a page deep in a list with its second.
func measureDepth(ctx context.Context, s *subject, r *report) error {
	o, end := must2(s.openOrigin(ctx))
	defer end()
	q := firstPage(s.workspace)
	for i, order := range q.List.Orders {
		q.Order = i
		second, deep := must2(deepQuery(ctx, o, q))
		spent := must1(alternate(fetches(ctx, o, second, deep)...))
		r.ratio("page 2,000 by "+order.Name+": time per query, µs, against page 2, of as many bytes", "%.1f", spent[1].wall, spent[0].wall, 1.1)
	}
	return nil
}

// fetches are the reads of some pages.
func fetches(ctx context.Context, o *origin.Origin, queries ...page.Query) (reads []func() error) {
	for _, q := range queries {
		reads = append(reads, func() error { _, err := o.Fetch(ctx, q, ""); return err })
	}
	return reads
}

// deepQuery walks a list from its first page, and returns the query of its second page, and
// that of the deep page or of one nearby: the one that reads nearly as many bytes.
func deepQuery(ctx context.Context, o *origin.Origin, q page.Query) (second, found page.Query, err error) {
	bytes, off := 0, 0 // of the second; by how many what was found is longer or shorter
	for n := 1; n <= deepPage+nearby; n++ {
		read, err := o.Fetch(ctx, q, "")
		if err != nil {
			return second, found, err
		}
		if len(read.Rows) <= pageSize {
			return second, found, fmt.Errorf("page %d is the last", n)
		}
		size := 0
		for i := range read.Rows {
			size += len(read.Rows[i].Text())
		}
		if n == 2 {
			second, bytes = q, size
		}
		if by := max(size-bytes, bytes-size); n == deepPage-nearby || n > deepPage-nearby && by < off {
			found, off = q, by
		}
		q = q.Behind(&read.Rows[pageSize-1])
	}
	return second, found, nil
}
