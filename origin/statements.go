package origin

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"listedge/origin/postgres"
)

// searchGlance and searchWalk are how many rows of a list a search looks at in
// list order before it turns to the index of grams. A term that many rows match
// fills its page at a glance; one of which a glance holds a searchHint-th of
// the page fills it, likely, from the walk; one that few rows match is found by
// the index. None of it depends on what the planner believes.
const (
	searchGlance = 500
	searchWalk   = 2000
	searchHint   = 8
)

// searchPlan is how a page's statement searches.
type searchPlan uint8

const (
	noSearch      searchPlan = iota
	walkSearch               // the term has no gram: look at every row in list order
	indexedSearch            // glance, walk up to searchWalk rows, then the index of grams
)

// shape is what a page's statement depends on; there are some two hundred, and
// each connection prepares those it meets.
type shape struct {
	collection Collection
	sort       Sort
	stock      Stock
	typ        Type
	search     searchPlan
	after      bool
}

// statement makes the shape's statement; settings are Statement.Settings.
func (s shape) statement(settings string) *postgres.Statement {
	q := &postgres.Statement{
		Name:       fmt.Sprintf("page_%d_%d_%d_%d_%d_%t", s.collection, s.sort, s.stock, s.typ, s.search, s.after),
		SQL:        s.sql(),
		Parameters: []uint32{pgtype.UUIDOID, pgtype.Int8OID},
		Columns:    []postgres.Column{{Name: "snapshot", Type: pgtype.TextOID}},
		Formats:    []int16{pgtype.TextFormatCode},
		Settings:   settings,
	}
	for range s.search { // a pattern, and the term of the index
		q.Parameters = append(q.Parameters, pgtype.TextOID)
	}
	if s.after {
		q.Parameters = append(q.Parameters, orders[s.sort].oid, pgtype.UUIDOID)
	}
	for _, c := range s.collection.listed() {
		q.Columns = append(q.Columns, postgres.Column{Name: s.collection.String() + "." + c.Name, Type: c.Kind.oid()})
		q.Formats = append(q.Formats, c.Kind.format())
	}
	return q
}

// shapeOf also returns the statement's arguments in the binary format:
// workspace, rows wanted, then the search pattern, the term whose grams are
// looked up, and the position, where the shape has them.
func shapeOf(q *Query) (shape, [][]byte) {
	s := shape{collection: q.Collection, sort: q.Sort, stock: q.Stock, typ: q.Type, after: q.After.Set}
	args := make([][]byte, 2, 6)
	args[0] = q.Workspace[:]
	args[1] = binary.BigEndian.AppendUint64(nil, uint64(q.Limit+1)) // one more tells whether there is more
	if q.Search != "" {
		s.search = walkSearch
		args = append(args, []byte(likePattern(q.Search)))
		if hasGram(q.Search) {
			s.search = indexedSearch
			args = append(args, []byte(q.Search))
		}
	}
	if q.After.Set {
		if q.Sort == ByName {
			args = append(args, []byte(q.After.Name))
		} else {
			args = append(args, binary.BigEndian.AppendUint64(nil, uint64(q.After.CreatedAt-postgresEpoch)))
		}
		args = append(args, q.After.ID[:])
	}
	return s, args
}

// Conditions that the partial indexes of the schema repeat word by word.
var (
	stockConditions = map[Stock]string{
		Tracked: " AND track_stock",
		Low:     " AND track_stock AND stock_on_hand <= reorder_point",
	}
	typeConditions = map[Type]string{
		Goods:     " AND type = 'GOODS'",
		Services:  " AND type = 'SERVICE'",
		Customers: " AND is_customer",
		Suppliers: " AND is_supplier",
	}
	searchedColumns = [...][4]string{
		Items:    {"name", "sku", "description", "NULL"},
		Contacts: {"name", "email", "phone", "tin"},
	}
	orders = [...]struct {
		order, after string
		oid          uint32 // the type of what comes before the id
	}{
		ByCreatedAt: {"created_at DESC, id DESC", "(created_at, id) < (%s::timestamptz, %s::uuid)", pgtype.TimestamptzOID},
		ByName: {"name_key(name) COLLATE name_order, id",
			"(name_key(name) COLLATE name_order, id) > (%s::text COLLATE name_order, %s::uuid)", pgtype.TextOID},
	}
)

// sql renders the page's one statement. A row of its own, before those of the
// page, has in its first column, which is NULL in all others, the snapshot that
// the statement works with: what a page shows cannot be told from when it was read.
//
// The innermost LIMIT is a literal so that a generic plan, which does not know
// its parameters, still knows that few rows are wanted and takes the list's
// index; the outer one is the page's. An index scan is lazy, so no more rows
// than the page's are read. Grams are looked up behind an OFFSET 0, with no
// other condition beside them that another index could be thought cheaper for.
func (s shape) sql() string {
	var list []string
	for _, c := range s.collection.listed() {
		list = append(list, c.Name)
	}
	next := 2
	parameter := func() string { next++; return fmt.Sprintf("$%d", next) }

	rows := "workspace_id = $1 AND active" + stockConditions[s.stock] + typeConditions[s.typ]
	text, match := "", ""
	if s.search != noSearch {
		fields := searchedColumns[s.collection]
		text = fmt.Sprintf("search_text(%s)", strings.Join(fields[:], ", "))
		// A subquery has it folded once, not for every row: generic plans know no parameter's value.
		pattern := "(SELECT search_fold(" + parameter() + "::text))"
		var exact []string
		for _, f := range fields {
			if f != "NULL" {
				exact = append(exact, fmt.Sprintf("search_fold(%s) LIKE %s", f, pattern))
			}
		}
		match = text + " LIKE " + pattern + " AND (" + strings.Join(exact, " OR ") + ")"
	}
	grams := ""
	if s.search == indexedSearch {
		grams = fmt.Sprintf("search_grams(workspace_id, %s) @> (SELECT search_grams($1, search_fold(%s::text)))", text, parameter())
	}
	order := orders[s.sort]
	if s.after {
		rows += " AND " + fmt.Sprintf(order.after, parameter(), parameter())
	}
	table, columns := postgres.Schema+"."+s.collection.String(), strings.Join(list, ", ")

	var page, with string
	switch s.search {
	case noSearch:
		page = fmt.Sprintf("SELECT %s FROM (SELECT * FROM %s WHERE %s ORDER BY %s LIMIT %d) list LIMIT $2",
			columns, table, rows, order.order, MaxLimit+1)
	case walkSearch:
		page = fmt.Sprintf("SELECT %s FROM (SELECT * FROM %s WHERE %s AND %s ORDER BY %s LIMIT %d) list LIMIT $2",
			columns, table, rows, match, order.order, MaxLimit+1)
	case indexedSearch:
		first := func(n int) string {
			return fmt.Sprintf("SELECT %s FROM (SELECT * FROM %s WHERE %s ORDER BY %s LIMIT %d) walk WHERE %s", columns, table, rows, order.order, n, match)
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
	SELECT * FROM (SELECT * FROM %[2]s WHERE active AND %[6]s OFFSET 0) found WHERE %[3]s AND %[5]s ORDER BY %[4]s LIMIT $2) sorted
WHERE %[7]s < $2 AND %[8]s < $2`, columns, table, rows, order.order, match, grams, glanced, walked)
	}
	return with + readPointSQL + strings.Repeat(", NULL", len(list)) + " UNION ALL SELECT NULL, page.* FROM (" + page + ") page"
}

// readPointSQL selects a page's read point: its snapshot, and which server answers.
const readPointSQL = `SELECT pg_current_snapshot()::text || '@' || ` + postgres.ServerSQL

// hasGram says whether the index of grams can narrow the term down: whether it
// holds three characters in a row that are neither a blank nor a line feed.
// Folded, it then does too: a character becomes one or more, none a blank.
func hasGram(term string) bool {
	run := 0
	for _, r := range term {
		if r == ' ' || r == '\n' {
			run = 0
		} else if run++; run == 3 {
			return true
		}
	}
	return false
}

var likeEscapes = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// likePattern matches the term anywhere, its own %, _ and \ as themselves.
func likePattern(term string) string { return "%" + likeEscapes.Replace(term) + "%" }
