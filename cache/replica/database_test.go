package replica

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

const modelRows = 6

var modelTable = changefeed.List{Workspace: uuid.UUID{1}, Collection: lists.Items}

var modelKeys = []Key{
	{modelTable, lists.ByCreatedAt, 0, ""}, {modelTable, lists.ByName, 0, ""},
	{modelTable, lists.ByCreatedAt, lists.Goods, ""}, {modelTable, lists.ByName, lists.Goods, ""},
	{modelTable, lists.ByName, 0, "RED"}, {modelTable, lists.ByCreatedAt, lists.Goods, "RED"},
}

// transaction has what it changed: rows as they are then, or nil, and as the log says.
type transaction struct {
	xid, lsn uint64 // lsn 0 = it is not logged
	ended    bool
	rows     map[int]*lists.Row
	says     says
	change   *changefeed.Change
}

// says is what the log says of a transaction's rows.
type says uint8

const (
	sayRows says = iota
	sayNoText
	sayNoName
	sayAnyRow
	sayCollection
)

// describe makes the change as the log has it.
func (x *transaction) describe() {
	if x.says == sayCollection {
		x.change.Whole = 1 << lists.Items
		return
	}
	x.change.Lists = []changefeed.List{modelTable}
	if x.says == sayAnyRow {
		return
	}
	rows := []lists.Row{}
	for i, row := range x.rows {
		if row == nil {
			row = &lists.Row{ID: uuid.UUID{byte(i + 1)}, Flags: lists.Gone}
		}
		says := *row
		switch x.says {
		case sayNoText:
			says.SetTexts(row.NameKey(), "")
		case sayNoName:
			says.SetTexts("", "").Flags |= lists.NameUnknown
		}
		rows = append(rows, says)
	}
	x.change.Rows = [][]lists.Row{rows}
}

type database struct {
	next, latest, wal uint64
	active            []*transaction
	logged            []*transaction
	locks             [modelRows]*transaction
	chains            [modelRows][]*transaction // that changed the row, in the order of its locks
	replayed          uint64
	versions          int
}

func (db *database) begin() *transaction {
	db.next++
	x := &transaction{xid: db.next, rows: map[int]*lists.Row{}, change: &changefeed.Change{XID: db.next}}
	db.active = append(db.active, x)
	return x
}

// write gives the row another version; false = it has to wait for a lock.
func (db *database) write(x *transaction, i int, row *lists.Row) bool {
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
		x.describe()
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

// table returns the rows in the versions that are shown.
func (db *database) table(shows func(x *transaction) bool) (rows []*lists.Row) {
	for i := range modelRows {
		var row *lists.Row
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

func (db *database) seenBy(s changefeed.Snapshot) []*lists.Row {
	return db.table(func(x *transaction) bool { return x.ended && s.Sees(x.xid) })
}

// version makes a version of a row that no other is equal to, but for its position.
func (db *database) version(r *rand.Rand, i int) *lists.Row {
	db.versions++
	name := []string{"a", "b", "b red", "c red"}[r.IntN(4)]
	row := &lists.Row{ID: uuid.UUID{byte(i + 1)}, CreatedAt: int64(r.IntN(4))}
	if r.IntN(2) == 0 {
		row.Flags = lists.Goods
	}
	return row.SetTexts(lists.NameKey(name), fmt.Sprintf(`{"name":%q,"sku":null,"description":"%d"}`, name, db.versions))
}

// list returns what a statement would.
func (k *Key) list(table []*lists.Row) (list []*lists.Row) {
	for _, row := range table {
		if row.Flags&k.Filter == k.Filter && strings.Contains(row.NameKey(), k.Search) {
			list = append(list, row)
		}
	}
	slices.SortFunc(list, func(a, b *lists.Row) int {
		return strings.Compare(string(a.Position(k.Order)), string(b.Position(k.Order)))
	})
	return list
}
