package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"listedge/internal/page"
)

// measureGrowth compares a large workspace with smaller ones.
func measureGrowth(ctx context.Context, s *subject, r *report) error {
	o, end := must2(s.openOrigin(ctx))
	defer end()
	for _, c := range []struct {
		what, few string
		goal      float64
	}{{"list", "", 1.15}, {"search that few rows match", "few", 2}, {"search that many rows match", "many", 2}} {
		var queries []page.Query
		for _, size := range s.sizes {
			term := must1(s.term(ctx, size.workspace, c.few))
			q := firstPage(size.workspace)
			q.Search = term
			queries = append(queries, q)
		}
		spent := must1(alternate(fetches(ctx, o, queries...)...))
		for i, size := range s.sizes {
			if i > 0 {
				goal := 0.0
				if size == s.large() {
					goal = c.goal
				}
				r.ratio(fmt.Sprintf("%s, %d items: time per query, µs, against 1,000 items", c.what, size.items), "%.0f", spent[i].wall, spent[0].wall, goal)
			}
		}
	}
	return nil
}

// term is something to search for in a workspace: one SKU, or the commonest
// word of its names.
func (s *subject) term(ctx context.Context, workspace uuid.UUID, which string) (term string, err error) {
	statement := map[string]string{
		"few": "SELECT sku FROM items WHERE workspace_id = $1 AND active AND sku IS NOT NULL ORDER BY id LIMIT 1",
		"many": "SELECT word FROM (SELECT name FROM items WHERE workspace_id = $1 LIMIT 1000) i, regexp_split_to_table(lower(name), '\\W+') word " +
			"WHERE length(word) > 3 GROUP BY 1 ORDER BY count(*) DESC LIMIT 1",
	}[which]
	if statement == "" {
		return "", nil
	}
	err = s.db.QueryRow(ctx, statement, workspace).Scan(&term)
	return term, err
}
