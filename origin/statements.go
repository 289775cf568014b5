package origin

import (
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/origin/postgres"
)

// shape is what a page's statement depends on. A list has some hundred shapes at most. A connection
// prepares the statements that it needs.
type shape struct {
	list *list.List
	list.Shape
}

// statement makes the shape's statement.
func (s shape) statement() *postgres.Statement {
	name := fmt.Sprintf("page_%d_%d_%x_%d_%t", s.list.Number, s.Order, s.Match, s.Search, s.After)
	if s.Folds {
		name += "_folds"
	}
	q := statementOf(s.list, name, s.list.PageSQL(s.Shape, readPointSQL, s.rows(page.MaxLimit)))
	if s.Folds {
		q.Columns = append(q.Columns, postgres.Column{Name: "folds", Type: pgtype.TextOID})
	}
	return q
}

// rowsShape is what the statement of rows of keys depends on (list.RowsSQL).
type rowsShape struct {
	list  *list.List
	match uint64
}

// statement makes the shape's statement.
func (s rowsShape) statement() *postgres.Statement {
	return statementOf(s.list, fmt.Sprintf("rows_%d_%x", s.list.Number, s.match), s.list.RowsSQL(s.match, readPointSQL))
}

// statementOf makes a statement whose rows are the read point, and rows of the list.
func statementOf(l *list.List, name, sql string) *postgres.Statement {
	q := &postgres.Statement{Name: name, SQL: sql, Columns: []postgres.Column{{Name: "snapshot", Type: pgtype.TextOID}}}
	for _, c := range l.Columns[:l.Selected] {
		q.Columns = append(q.Columns, postgres.Column{Name: l.Table.String() + "." + c.Name, Type: c.OID})
	}
	return q
}

// rowsOfKeys returns what the statement of rows of keys is asked.
func rowsOfKeys(q *page.Query, keys []string) inquiry {
	var arguments [][]byte
	array := []byte{'{'}
	for i, key := range keys {
		if i > 0 {
			array = append(array, ',')
		}
		array = append(array, '"')
		for _, c := range []byte(q.List.KeyText(key)) {
			if c == '"' || c == '\\' {
				array = append(array, '\\')
			}
			array = append(array, c)
		}
		array = append(array, '"')
	}
	if q.List.Tenant >= 0 {
		arguments = append(arguments, tenantOf(q))
	}
	return inquiry{arguments: append(arguments, append(array, '}')), rows: 2*len(keys) + 1, whole: 1, keys: keys}
}

// tenantOf returns the argument of the query's tenant; nil = no row has such a one.
func tenantOf(q *page.Query) []byte {
	if !q.List.IsTenant(q.Tenant) {
		return nil
	}
	return []byte(q.Tenant)
}

// arguments returns the arguments of the shape's statement. Those of the tenant and the position may be nil,
// which is NULL: then there are no rows.
func (s shape) arguments(tenant []byte, rows int, term, value, key []byte) (arguments [][]byte) {
	if s.list.Tenant >= 0 {
		arguments = append(arguments, tenant)
	}
	arguments = append(arguments, strconv.AppendInt(nil, int64(rows), 10))
	if s.Search != list.NoSearch {
		arguments = append(arguments, term)
	}
	if s.After {
		arguments = append(arguments, value, key)
	}
	return arguments
}

// shapeOf returns the query's shape, and the arguments of its statement.
func shapeOf(q *page.Query) (shape, [][]byte) {
	s, folded := shape{q.List, list.Shape{Order: q.Order, Match: q.Match, After: q.After != ""}}, ""
	if q.Search != "" {
		folded = list.Fold(q.Search) // of an accent alone it is empty
	}
	switch {
	case list.HasGram(folded):
		s.Search = list.IndexedSearch
	case folded != "":
		s.Search = list.WalkSearch
	}
	value, key := "", ""
	if s.After {
		value, key, _ = q.List.ParsePosition(q.Order, q.After)
	}
	return s, s.arguments(tenantOf(q), s.rows(q.Limit), []byte(folded), []byte(value), []byte(key))
}

// pagesAhead is how many pages a query with a position reads, if it is no search: its client
// follows cursors, and four pages cost the database little more than one. A search may have to
// look at many rows for each that it finds.
const pagesAhead = 4

// rows is how many rows a query of this shape reads: one more than its pages have, to know whether
// more follow.
func (s shape) rows(limit int) int {
	if s.After && s.Search == list.NoSearch {
		return pagesAhead*limit + 1
	}
	return limit + 1
}

// readPointSQL selects a statement's read point, <snapshot>@<LSN>@<ServerSQL>: a standby shows
// no WAL behind the LSN; on a primary it is 0. It is the snapshot, since the time of a read
// does not say which changes it shows.
const readPointSQL = `SELECT pg_current_snapshot()::text || '@' ||
	coalesce((greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0')::text, '0') || '@' || ` + postgres.ServerSQL
