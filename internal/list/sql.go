package list

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// SearchPlan is how a page's statement searches.
type SearchPlan uint8

// The plans of a search. An indexed search takes the first of three ways that fills its page. None depends on
// the planner's estimates:
//
//  1. Glance: the first SearchGlance rows in the list's order. It is enough for a term that many rows match.
//  2. Walk: the first SearchWalk rows, if the glance found at least 1/searchHint of the page.
//  3. The index of grams, for a term that few rows match.
const (
	NoSearch   SearchPlan = iota
	WalkSearch            // the term has no gram (one or two Latin letters): compare every row in the list's order
	IndexedSearch
)

// What the first two ways of an indexed search read at most, in rows.
const (
	SearchGlance = 500
	SearchWalk   = 2000
	searchHint   = 8
)

// Shape is what the SQL of a page's statement depends on, besides the list.
type Shape struct {
	Order  int
	Match  uint64
	Search SearchPlan
	After  bool // there is a position
	Folds  bool // the statement returns what Folds does of each row, in a column more
}

// PageSQL returns the statement of a page. Its parameters are texts: the tenant, if the list has one; the number
// of rows; and, where the shape has them, the folded term, and the order's value and the key of the position. A
// tenant of NULL has no rows. readPoint is a SELECT of one column. Its row comes first; the others have NULL
// there, and then Columns[:Selected]. The statement returns at most maxRows rows of the list.
//
// The innermost LIMIT is a literal so that a generic plan, which does not know its parameters, still knows that
// few rows are wanted and takes the list's index; the outer one is the page's. An index scan is lazy, so no more
// rows than the page's are read.
//
// No plan depends on statistics, on the size of an index or on its pending list, because the planner has no
// choice: sequential scans and sorts are off (postgres.SessionSettings), so a page needs an index that has its
// order, and an order ends with words for the key that only the indexes of the list have (see List.tie). Those of
// rows that a filter keeps few of end with other words. Other conditions are kept away from the index of grams by
// OFFSET 0, and what stays with it are words that no other index has (see List.inGrams).
func (l *List) PageSQL(s Shape, readPoint string, maxRows int) string {
	next := 0
	parameter := func() string { next++; return fmt.Sprintf("$%d::text", next) }
	var where []string
	tenant := "''"
	if l.Tenant >= 0 {
		tenant = parameter()
		c := &l.Columns[l.Tenant]
		where = append(where, c.sql()+" = "+c.cast(tenant))
	}
	limit := parameter() + "::bigint"
	match, grams := "", ""
	if s.Search != NoSearch {
		term := parameter()
		match = l.matches(term)
		grams = fmt.Sprintf("%s @> (SELECT public.listedge_search_grams(%s, %s))", l.grams(), tenant, term)
	}
	kept, copies := l.keeps(s.Match)
	where = append(where, l.Live.String(), kept)
	if s.After {
		where = append(where, l.after(s.Order, copies, parameter(), parameter()))
	}
	q := pageSQL{table: l.Table.SQL(), columns: l.columns(), where: cmp.Or(join(where...), "true"), by: l.by(s.Order, copies), limit: limit}
	with, rows := "", q.walk(maxRows, match)
	if s.Search == IndexedSearch {
		with, rows = q.search(match, join(l.inGrams(), grams))
	}
	folds := ""
	if s.Folds {
		folds = foldsSQL(l)
	}
	return with + l.selectSQL(readPoint, folds, "("+rows+") page")
}

// RowsSQL returns the statement of the rows of some keys. Its parameters are texts: the tenant, if the list has one, and
// an array of keys. Its columns are those of PageSQL. The rows have the order of the keys. A row that is not live, or that
// a filter does not keep, is not read.
//
// Each key is one probe of the unique index that the list needs, whatever the planner knows: ordering by a key between
// two bounds leaves it no other index, as it would not between equals, and OFFSET 0 keeps other conditions away, for which
// there are others. The index has the collation of its columns, and may find another text, which is left out.
func (l *List) RowsSQL(match uint64, readPoint string) string {
	key, asked, array := &l.Columns[l.Key], "listedge_keys.listedge_key", "$1"
	kept, _ := l.keeps(match)
	name, bound, rest := Quote(key.Name), key.cast(asked), join(l.Live.String(), kept)
	probe := fmt.Sprintf("%[1]s >= %[2]s AND %[1]s <= %[2]s", name, bound)
	if key.isText() {
		rest = join(key.sql()+" = "+asked, rest)
	}
	if l.Tenant >= 0 {
		c := &l.Columns[l.Tenant]
		probe, array = Quote(c.Name)+" = "+c.cast("$1::text")+" AND "+probe, "$2"
		if c.isText() {
			rest = join(c.sql()+" = $1::text", rest)
		}
	}
	return l.selectSQL(readPoint, "", fmt.Sprintf("unnest(%s::text[]) AS listedge_keys (listedge_key) "+
		"CROSS JOIN LATERAL (SELECT %s FROM %s WHERE %s ORDER BY %s OFFSET 0) found WHERE %s",
		array, l.columns(), l.Table.SQL(), probe, name, cmp.Or(rest, "true")))
}

// columns returns the names of all columns, each once.
func (l *List) columns() string {
	var names []string
	for i := range l.Columns {
		if name := l.Columns[i].Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return Quoted(names...)
}

// selectSQL selects the read point, and then what a row shows of the rows, and of each the folds, unless that is empty.
func (l *List) selectSQL(readPoint, folds, rows string) string {
	var shown []string
	for i := range l.Columns[:l.Selected] {
		shown = append(shown, Quote(l.Columns[i].Name))
	}
	if folds != "" {
		shown = append(shown, folds)
	}
	return readPoint + strings.Repeat(", NULL", len(shown)) + fmt.Sprintf(" UNION ALL SELECT NULL, %s FROM %s", strings.Join(shown, ", "), rows)
}

// pageSQL has the parts of a page's statement.
type pageSQL struct {
	table, columns string
	where          string // which rows the list has behind the position
	by             string // what follows ORDER BY
	limit          string // the page's
}

// walk selects the page's rows among those that match, in the list's order.
func (q *pageSQL) walk(maxRows int, match string) string {
	return fmt.Sprintf("SELECT * FROM (SELECT %s FROM %s WHERE %s ORDER BY %s LIMIT %d) list LIMIT %s",
		q.columns, q.table, join(q.where, match), q.by, maxRows, q.limit)
}

// search selects them in the three ways of an indexed search. with precedes the statement.
func (q *pageSQL) search(match, candidates string) (with, rows string) {
	first := func(n int) string {
		return fmt.Sprintf("SELECT * FROM (SELECT %s FROM %s WHERE %s ORDER BY %s LIMIT %d) walk WHERE %s", q.columns, q.table, q.where, q.by, n, match)
	}
	const glanced, walked = "(SELECT count(*) FROM glanced)", "(SELECT count(*) FROM walked)"
	with = fmt.Sprintf(`WITH glanced AS MATERIALIZED (%[1]s LIMIT %[3]s),
walked AS MATERIALIZED (%[2]s AND %[4]s < %[3]s AND %[4]s * %[5]d >= %[3]s LIMIT %[3]s)
`, first(SearchGlance), first(SearchWalk), q.limit, glanced, searchHint)
	rows = fmt.Sprintf(`SELECT * FROM glanced WHERE %[1]s = %[3]s
UNION ALL
SELECT * FROM walked WHERE %[2]s = %[3]s
UNION ALL
SELECT * FROM (
	SELECT * FROM (SELECT %[4]s FROM %[5]s WHERE %[6]s OFFSET 0) found WHERE %[7]s ORDER BY %[8]s LIMIT %[3]s) sorted
WHERE %[1]s < %[3]s AND %[2]s < %[3]s`, glanced, walked, q.limit, q.columns, q.table, candidates, join(q.where, match), q.by)
	return with, rows
}

// join makes one condition of several; an empty one is that of all rows.
func join(conditions ...string) string {
	return strings.Join(slices.DeleteFunc(conditions, func(c string) bool { return c == "" }), " AND ")
}

// keeps returns the condition of the filters' values, and the copies (see tie) of the index that has the rows.
func (l *List) keeps(match uint64) (condition string, copies int) {
	copies = allCopies
	for i, f := range l.Filters {
		for _, v := range f.Values {
			if match&v.Bit == 0 {
				continue
			}
			condition = join(condition, v.Keep.String())
			if v.Few && copies == allCopies {
				copies = fewCopies(i)
			}
		}
	}
	return condition, copies
}

// allCopies are the copies of the key in the indexes of all rows.
const allCopies = 2

// fewCopies returns those in the indexes of the rows that a filter keeps few of. A page that two such filters keep
// rows for is read by an index of the first.
func fewCopies(filter int) int { return allCopies + 1 + filter }

// tie returns the words that order rows of the same value: greatest(key, key), which is the key. The planner does
// not know that. An index that ends with other words, as those of the table's owner do, would need a sort.
func (l *List) tie(copies int) string {
	key := l.Columns[l.Key].sql()
	return "greatest(" + strings.Repeat(key+", ", copies-1) + key + ")"
}

// sql returns the words of a column's value as lists compare it: a text as its bytes.
func (c *Column) sql() string {
	switch {
	case !c.isText():
		return Quote(c.Name)
	case c.kind == kindText:
		return Quote(c.Name) + ` COLLATE "C"`
	}
	return Quote(c.Name) + `::text COLLATE "C"`
}

// cast returns the words that make a text one of the column's values.
func (c *Column) cast(text string) string {
	if c.isText() {
		return text
	}
	return text + "::" + c.Type.Name
}

// keys returns the words that rows are ordered by.
func (l *List) keys(order, copies int) []string {
	o := &l.Orders[order]
	value := l.Columns[o.Column].sql()
	if o.Fold {
		value = "public.listedge_name_key(" + value + ")"
	}
	return []string{value, l.tie(copies)}
}

// by returns what follows ORDER BY.
func (l *List) by(order, copies int) string {
	direction := ""
	if l.Orders[order].Descending {
		direction = " DESC"
	}
	return strings.Join(l.keys(order, copies), direction+", ") + direction
}

// after returns the condition of the rows behind a position.
func (l *List) after(order, copies int, value, key string) string {
	o := &l.Orders[order]
	operator := ">"
	if o.Descending {
		operator = "<"
	}
	if !o.Fold {
		value = l.Columns[o.Column].cast(value)
	}
	return fmt.Sprintf("(%s) %s (%s, %s)", strings.Join(l.keys(order, copies), ", "), operator, value, l.Columns[l.Key].cast(key))
}

// folds returns the folds of the searched columns.
func (l *List) folds() (folds []string) {
	for _, i := range l.Search {
		folds = append(folds, "public.listedge_fold("+l.Columns[i].sql()+")")
	}
	return folds
}

// foldsSQL returns the words of the folds of a list's row: see Folds.
func foldsSQL(l *List) string {
	words := "''"
	for _, fold := range l.folds() {
		words += " || coalesce(" + fold + `, '') || E'\n'`
	}
	for order := range l.Orders {
		if l.Orders[order].Fold {
			words += " || " + l.keys(order, allCopies)[0] + ` || E'\n'`
		}
	}
	return words
}

// matches returns the condition that a searched column has the folded term.
func (l *List) matches(term string) string {
	var found []string
	for _, fold := range l.folds() {
		found = append(found, "strpos("+fold+", "+term+") > 0")
	}
	return "(" + strings.Join(found, " OR ") + ")"
}

// grams returns the words of a row's grams.
func (l *List) grams() string {
	tenant := "''"
	if l.Tenant >= 0 {
		c := l.Columns[l.Tenant]
		tenant = c.sql()
		if !c.isText() {
			tenant += "::text"
		}
	}
	var texts []string
	for _, fold := range l.folds() {
		texts = append(texts, "coalesce("+fold+", '')")
	}
	return fmt.Sprintf("public.listedge_search_grams(%s, %s)", tenant, strings.Join(texts, ` || E'\n' || `))
}

// inGrams returns the condition of the rows that the index of grams has: of those that clients see. The planner
// does not know that it is Live, so it reads no other index for it. Empty = all rows.
func (l *List) inGrams() string {
	live := l.Live.String()
	if live == "" {
		return ""
	}
	return "booleq(" + live + ", true)"
}

// Index is an index that the statements need.
type Index struct {
	Name string // names the definition, too: an index of another definition has another name
	SQL  string // what follows CREATE INDEX [CONCURRENTLY] <Name>
	Then string // a statement to run when the index is made; empty = none
}

// Indexes returns the indexes that the statements need. They are in the schema of the list's table.
func (l *List) Indexes() (indexes []Index) {
	for order := range l.Orders {
		indexes = l.addPages(indexes, "", order, allCopies, "")
		for i, f := range l.Filters {
			for _, v := range f.Values {
				if v.Few {
					indexes = l.addPages(indexes, v.Name+"_", order, fewCopies(i), v.Keep.String())
				}
			}
		}
	}
	if len(l.Search) == 0 {
		return indexes
	}
	grams := l.index("by_grams", "gin", []string{l.grams()}, l.inGrams())
	// ANALYZE is spared the grams: plans do not depend on how often which is found.
	grams.Then = fmt.Sprintf("ALTER INDEX %s.%s ALTER COLUMN 1 SET STATISTICS 0", Quote(l.Table.Schema), Quote(grams.Name))
	return append(indexes, grams)
}

// addPages adds the index of an order, if it is not there: two directions share one.
func (l *List) addPages(indexes []Index, of string, order, copies int, keep string) []Index {
	var keys []string
	if l.Tenant >= 0 {
		keys = append(keys, l.Columns[l.Tenant].sql())
	}
	keys = append(keys, l.keys(order, copies)...)
	x := l.index(of+"by_"+l.Columns[l.Orders[order].Column].Name, "btree", keys, join(l.Live.String(), keep))
	if slices.Contains(indexes, x) {
		return indexes
	}
	return append(indexes, x)
}

// index makes an index.
func (l *List) index(name, method string, keys []string, where string) Index {
	sql := fmt.Sprintf("ON %s USING %s ((%s))", l.Table.SQL(), method, strings.Join(keys, "), ("))
	if where != "" {
		sql += " WHERE " + where
	}
	return Index{Name: NameOf(plain(l.Name+"_"+name, '_'), "", sql), SQL: sql}
}

// plain returns a text in small letters and digits, with another character in the place of all else.
func plain(text string, other rune) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return other
	}, text)
}

// NameOf returns a name of an index: the first word, as far as there is room, the last, and a hash of what tells it from others.
func NameOf(first, last, definition string) string {
	const longest = 63 // bytes of a name in Postgres
	hash := sha256.Sum256([]byte(definition))
	last += "_" + hex.EncodeToString(hash[:4])
	return strings.ToValidUTF8(first[:min(len(first), longest-len(last))], "") + last
}
