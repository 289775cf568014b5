package origin

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/lists"
	"listedge/internal/page"
	"listedge/origin/postgres"
)

// An indexed search takes the first of three ways that fills its page. searchGlance and
// searchWalk bound the first two, in rows. None depends on the planner's estimates, and no plan does:
// see sql.
//
//  1. Glance: the first searchGlance rows in list order. It is enough for a term
//     that many rows match.
//  2. Walk: the first searchWalk rows, if the glance found at least 1/searchHint of
//     the page.
//  3. The index of grams, for a term that few rows match.
const (
	searchGlance = 500
	searchWalk   = 2000
	searchHint   = 8
)

// searchPlan is how a page's statement searches.
type searchPlan uint8

const (
	noSearch      searchPlan = iota
	walkSearch               // the term has no gram (one or two Latin letters): compare every row in list order
	indexedSearch            // glance, walk, index
)

// shape is what the SQL of a page's statement depends on. There are about two hundred shapes. A
// connection prepares the statements that it needs.
type shape struct {
	collection lists.Collection
	sort       lists.Order
	filter     lists.Flags
	search     searchPlan
	after      bool
}

// statement makes the shape's statement.
func (s shape) statement() *postgres.Statement {
	q := &postgres.Statement{
		Name:       fmt.Sprintf("page_%d_%d_%d_%d_%t", s.collection, s.sort, s.filter, s.search, s.after),
		SQL:        s.sql(),
		Parameters: []uint32{pgtype.UUIDOID, pgtype.Int8OID},
		Columns:    []postgres.Column{{Name: "snapshot", Type: pgtype.TextOID}},
	}
	if s.search != noSearch {
		q.Parameters = append(q.Parameters, pgtype.TextOID)
	}
	if s.after {
		q.Parameters = append(q.Parameters, s.sort.Kind().OID(), pgtype.UUIDOID)
	}
	for _, c := range s.collection.Listed() {
		q.Columns = append(q.Columns, postgres.Column{Name: s.collection.String() + "." + c.Name, Type: c.Kind.OID()})
	}
	return q
}

// shapeOf returns the query's shape, and its arguments in the binary format: workspace, number
// of rows, and, where the shape has them, the folded search and the position's key and id.
func shapeOf(q *page.Query) (shape, [][]byte) {
	s := shape{collection: q.Collection, sort: q.Sort, filter: q.Filter, after: q.After != ""}
	args := make([][]byte, 2, 6)
	args[0] = q.Workspace[:]
	if q.Search != "" {
		s.search = walkSearch
		folded := lists.Fold(q.Search)
		args = append(args, []byte(folded))
		if hasGram(folded) {
			s.search = indexedSearch
		}
	}
	args[1] = binary.BigEndian.AppendUint64(nil, uint64(s.rows(q.Limit)))
	if s.after {
		key, id, _ := q.Sort.Parse([]byte{}, q.After)
		args = append(args, key, id[:])
	}
	return s, args
}

// pagesAhead is how many pages a query with a position reads, if it is no search: its client
// follows cursors, and four pages cost the database little more than one. A search may have to
// look at many rows for each that it finds.
const pagesAhead = 4

// rows is how many rows a query of this shape reads: one more than its pages have, to know whether
// more follow.
func (s shape) rows(limit int) int {
	if s.after && s.search == noSearch {
		return pagesAhead*limit + 1
	}
	return limit + 1
}

// sql renders the statement. Its first row has the read point in the first column, and
// the other rows have NULL there. The read point is the snapshot: the time of a read
// does not say which changes it shows.
//
// The innermost LIMIT is a literal so that a generic plan, which does not know its
// parameters, still knows that few rows are wanted and takes the list's index; the
// outer one is the page's. An index scan is lazy, so no more rows than the page's
// are read. OFFSET 0 keeps other conditions away from the index of grams: for one
// of them the planner could choose another index.
//
// No plan depends on statistics, on the size of an index or on its pending list, because the
// planner has no choice: sequential scans and sorts are off (postgres.SessionSettings), and of
// the indexes it can use only those whose condition follows from the statement's. So each
// says that a row is active in the words of its index. The planner does not know that they mean
// the same.
func (s shape) sql() string {
	var list []string
	for _, c := range s.collection.Listed() {
		list = append(list, c.Name)
	}
	next := 2
	parameter := func() string { next++; return fmt.Sprintf("$%d", next) }

	var match, grams string
	if s.search != noSearch {
		term := parameter() + "::text"
		var fields, found []string
		for _, column := range s.collection.Searched() {
			fields, found = append(fields, "fold("+column+")"), append(found, "strpos(fold("+column+"), "+term+") > 0")
		}
		match = " AND (" + strings.Join(found, " OR ") + ")"
		fields = append(fields, "NULL", "NULL", "NULL")[:4] // as many as search_text takes
		grams = fmt.Sprintf(" AND search_grams(workspace_id, search_text(%s)) @> (SELECT search_grams($1, %s))", strings.Join(fields, ", "), term)
	}
	rows := "workspace_id = $1 AND " + s.collection.Active(s.filter) + s.collection.Where(s.filter)
	if s.after {
		rows += " AND " + s.sort.After(parameter(), parameter())
	}
	table, columns := postgres.Schema+"."+s.collection.String(), strings.Join(list, ", ")

	with, page := "", fmt.Sprintf("SELECT %s FROM (SELECT * FROM %s WHERE %s ORDER BY %s LIMIT %d) list LIMIT $2", columns, table, rows+match, s.sort.SQL(),
		s.rows(page.MaxLimit))
	if s.search == indexedSearch {
		first := func(n int) string {
			return fmt.Sprintf("SELECT %s FROM (SELECT * FROM %s WHERE %s ORDER BY %s LIMIT %d) walk WHERE true%s", columns, table, rows, s.sort.SQL(), n, match)
		}
		const glanced, walked = "(SELECT count(*) FROM glanced)", "(SELECT count(*) FROM walked)"
		with = fmt.Sprintf(`WITH glanced AS MATERIALIZED (%s LIMIT $2),
walked AS MATERIALIZED (%s AND %s < $2 AND %s * %d >= $2 LIMIT $2)
`, first(searchGlance), first(searchWalk), glanced, glanced, searchHint)
		page = fmt.Sprintf(`SELECT %[1]s FROM glanced WHERE %[7]s = $2
UNION ALL
SELECT %[1]s FROM walked WHERE %[8]s = $2
UNION ALL
SELECT %[1]s FROM (
	SELECT * FROM (SELECT * FROM %[2]s WHERE %[9]s%[6]s OFFSET 0) found WHERE %[3]s%[5]s ORDER BY %[4]s LIMIT $2) sorted
WHERE %[7]s < $2 AND %[8]s < $2`, columns, table, rows, s.sort.SQL(), match, grams, glanced, walked, lists.ActiveLow)
	}
	return with + readPointSQL + strings.Repeat(", NULL", len(list)) + " UNION ALL SELECT NULL, page.* FROM (" + page + ") page"
}

// readPointSQL selects a statement's read point, <snapshot>@<LSN>@<ServerSQL>: a standby shows
// no WAL behind the LSN; on a primary it is 0.
const readPointSQL = `SELECT pg_current_snapshot()::text || '@' ||
	coalesce((greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0')::text, '0') || '@' || ` + postgres.ServerSQL

// hasGram says whether the index of grams can narrow the folded term down: whether the
// function search_grams of the schema finds any in it.
func hasGram(folded string) bool {
	run := 0
	for _, r := range folded {
		if r == ' ' || r == '\n' {
			run = 0
			continue
		}
		run++
		if run == 3 || r >= '\u0e00' {
			return true
		}
	}
	return false
}
