package replica_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

const modelRows = 6

// shape is a list that the model is run on. Its rows have values of the model in some columns.
type shape struct {
	table   changefeed.Table
	keys    []replica.Key
	columns func(v modelValues) []string // of listtest.Row
	name    []string                     // the column of the name, which an order and the search are by; nil = it is always sent
	note    []string                     // that of the note; nil = likewise
}

// modelValues are a row of the model.
type modelValues struct {
	row     int
	at      int // the order by instants
	name    string
	version int // no other row has it
	note    string
	marked  bool // a filter keeps the row
}

// row makes a row. without are columns that a change left as they were.
func (s *shape) row(v modelValues, without ...string) *list.Row {
	columns := s.columns(v)
	for _, column := range without {
		columns = append(columns, column, listtest.Unsent)
	}
	row := listtest.Row(s.table.List, columns...)
	return &row
}

// key returns the key of a row.
func (s *shape) key(i int) string { return s.row(modelValues{row: i}).Key() }

// keysOf names lists of a table: by instants and by names, all rows and marked ones, and searches.
func keysOf(table changefeed.Table, byInstant, byName int, marked uint64) []replica.Key {
	return []replica.Key{
		{Table: table, Order: byInstant}, {Table: table, Order: byName},
		{Table: table, Order: byInstant, Match: marked}, {Table: table, Order: byName, Match: marked},
		{Table: table, Order: byName, Search: "RED"}, {Table: table, Order: byInstant, Match: marked, Search: "RED"},
	}
}

var modelTable = changefeed.Table{List: listtest.Items, Tenant: "1"}

var ofItems = shape{modelTable, keysOf(modelTable, listtest.ByCreatedAt, listtest.ByName, listtest.Goods), func(v modelValues) []string {
	kind := "SERVICE"
	if v.marked {
		kind = "GOODS"
	}
	return []string{"id", listtest.ID(v.row), "created_at", listtest.Instant(-v.at), "name", v.name, "sku", fmt.Sprint(v.version),
		"description", v.note, "type", kind}
}, []string{"name"}, []string{"description"}}

// transaction has what it changed: rows as they are then, or nil, and as the log says.
type transaction struct {
	xid, lsn uint64 // lsn 0 = it is not logged
	ended    bool
	rows     map[int]*list.Row
	says     says
	change   *changefeed.Change
}

// says is what the log says of a transaction's rows.
type says uint8

const (
	sayRows    says = iota
	sayChanged      // what it left as it was is not sent
	sayNoText
	sayNoName
	sayAnyRow
	sayCollection
)

// describe makes the change as the log has it.
func (x *transaction) describe(db *database) {
	if x.says == sayCollection {
		x.change.Touched = []changefeed.Touched{changefeed.AllRowsOf(db.table.List)}
		return
	}
	x.change.Touched = []changefeed.Touched{{Table: db.table}}
	if x.says == sayAnyRow {
		return
	}
	for i, row := range x.rows {
		says := list.GoneRow(db.key(i))
		if row != nil {
			says = db.described(row, db.before(i), x.says)
		}
		x.change.Touched[0].Rows = append(x.change.Touched[0].Rows, says)
	}
}

// described returns a row as the log has it.
func (db *database) described(row, before *list.Row, how says) list.Row {
	switch v := db.values[row]; {
	case how == sayChanged && before != nil:
		var without []string
		if v.note == db.values[before].note {
			without = append(without, db.note...)
		}
		if v.name == db.values[before].name {
			without = append(without, db.name...)
		}
		return *db.row(v, without...)
	case how == sayNoText:
		says := *row
		says.ForgetText()
		return says
	case how == sayNoName:
		says := *db.row(v, db.name...)
		says.ForgetText()
		return says
	}
	return *row
}

type database struct {
	shape
	values            map[*list.Row]modelValues // of all versions that version has made
	next, latest, wal uint64
	active            []*transaction
	logged            []*transaction
	locks             [modelRows]*transaction
	chains            [modelRows][]*transaction // that changed the row, in the order of its locks
	replayed          uint64
	versions          int
}

// before returns the version that the row has for who holds its lock; nil = it does not exist.
func (db *database) before(i int) *list.Row {
	chain := db.chains[i]
	if len(chain) == 0 {
		return nil
	}
	return chain[len(chain)-1].rows[i]
}

func (db *database) begin() *transaction {
	db.next++
	x := &transaction{xid: db.next, rows: map[int]*list.Row{}, change: &changefeed.Change{XID: db.next}}
	db.active = append(db.active, x)
	return x
}

// write gives the row another version; false = it has to wait for a lock.
func (db *database) write(x *transaction, i int, row *list.Row) bool {
	if db.locks[i] != nil && db.locks[i] != x || x.lsn != 0 {
		return false
	}
	db.locks[i], x.rows[i] = x, row
	return true
}

func (db *database) log(x *transaction) {
	if x.lsn == 0 {
		db.wal++
		x.lsn, x.change.LSN = db.wal, db.wal
		x.describe(db)
		db.logged = append(db.logged, x)
	}
}

// end makes a transaction visible if it is logged, and aborts it else.
func (db *database) end(x *transaction) {
	x.ended = true
	db.active = slices.DeleteFunc(db.active, func(a *transaction) bool { return a == x })
	db.latest = max(db.latest, x.xid)
	for i, holder := range db.locks {
		if holder == x {
			db.locks[i] = nil
			if x.lsn != 0 {
				db.chains[i] = append(db.chains[i], x)
			}
		}
	}
}

func (db *database) snapshot() (s changefeed.Snapshot) {
	s.Xmax = db.latest + 1
	for _, x := range db.active {
		if x.xid < s.Xmax {
			s.Running = append(s.Running, x.xid)
		}
	}
	slices.Sort(s.Running)
	s.Xmin = s.Xmax
	if len(s.Running) > 0 {
		s.Xmin = s.Running[0]
	}
	return s
}

// shown returns the rows in the versions that are shown.
func (db *database) shown(shows func(x *transaction) bool) (rows []*list.Row) {
	for i := range modelRows {
		var row *list.Row
		chain := db.chains[i]
		if x := db.locks[i]; x != nil && x.lsn != 0 {
			chain = append(slices.Clone(chain), x)
		}
		for _, x := range chain {
			if shows(x) {
				row = x.rows[i]
			}
		}
		if row != nil {
			rows = append(rows, row)
		}
	}
	return rows
}

func (db *database) seenBy(s changefeed.Snapshot) []*list.Row {
	return db.shown(func(x *transaction) bool { return x.ended && s.Sees(x.xid) })
}

// version makes a version of a row that no other is equal to, but for its position. Half of them have the
// name of the version before.
func (db *database) version(r *rand.Rand, i int) *list.Row {
	db.versions++
	v := modelValues{row: i, at: r.IntN(4), name: []string{"a", "b", "b red", "c red"}[r.IntN(4)], version: db.versions, note: []string{"p", "q"}[r.IntN(2)],
		marked: r.IntN(2) == 0}
	before := db.before(i)
	if before != nil && r.IntN(2) == 0 {
		v.name = db.values[before].name
	}
	row := db.row(v)
	db.values[row] = v
	return row
}

// listOf returns what a statement would.
func (db *database) listOf(k *replica.Key, table []*list.Row) (rows []*list.Row) {
	for _, row := range table {
		if row.Match&k.Match == k.Match && strings.Contains(list.Fold(db.values[row].name), k.Search) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *list.Row) int {
		return strings.Compare(string(k.Table.List.Position(a, k.Order)), string(k.Table.List.Position(b, k.Order)))
	})
	return rows
}
