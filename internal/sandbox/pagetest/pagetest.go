// Package pagetest makes pages of rows, as tests and benchmarks compare them.
package pagetest

import (
	"strings"

	"listedge/internal/lists"
	"listedge/origin"
)

// Of returns the body and the next cursor of the query's page among the rows that it read.
func Of(q *origin.Query, rows *origin.Rows) (body []byte, next string) {
	n := min(q.Limit, len(rows.Rows))
	texts, last := make([]string, n), (*lists.Row)(nil)
	for i := range texts {
		texts[i], last = rows.Rows[i].Text, &rows.Rows[i]
	}
	head, end, next := q.Frame(last, n < len(rows.Rows) || !rows.End)
	return []byte(head + strings.Join(texts, ",") + end), next
}
