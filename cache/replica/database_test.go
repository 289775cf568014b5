package replica_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/uuid"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

const modelRows = 6

var modelTable = changefeed.List{Workspace: uuid.UUID{1}, Collection: lists.Items}

var modelKeys = []replica.Key{
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
		x.change.Lists = []changefeed.Touched{changefeed.AllRowsOf(lists.Items)}
		return
	}
	x.change.Lists = []changefeed.Touched{{List: modelTable}}
	if x.says == sayAnyRow {
		return
	}
	for i, row := range x.rows {
		if row == nil {
			row = &lists.Row{ID: uuid.UUID{byte(i + 1)}, State: lists.Gone}
		}
		says := *row
		switch x.says {
		case sayChanged:
			if before := db.before(i); before != nil && row.State != lists.Gone {
				says = unlike(row, before)
			}
		case sayNoText:
			says.ForgetText()
		case sayNoName:
			says.SetTexts("", "").State = max(row.State, lists.PlaceUnknown)
		}
		x.change.Lists[0].Rows = append(x.change.Lists[0].Rows, says)
	}
}

// unlike returns a row as the log has it if Postgres does not send what it has in common with the version before.
func unlike(row, before *lists.Row) lists.Row {
	now, then := valuesOf(row), valuesOf(before)
	says, name, description := *row, quoted(now.Name), quoted(now.Description)
	key := says.NameKey()
	if now.Description == then.Description {
		description, says.State = "", lists.TextUnknown
	}
	if now.Name == then.Name {
		name, key, says.State = "", "", lists.PlaceUnknown
	}
	text := modelText(name, quoted(now.Sku), description)
	if says.State != lists.Known {
		text = "," + text[1:]
	}
	return *says.SetTexts(key, text)
}

type modelValues struct{ Name, Sku, Description string }

func valuesOf(row *lists.Row) (v modelValues) {
	must(json.Unmarshal([]byte(row.Text()), &v))
	return v
}

func modelText(name, sku, description string) string {
	return fmt.Sprintf(`{"name":%s,"sku":%s,"description":%s}`, name, sku, description)
}

func quoted(s string) string { return `"` + s + `"` }

func must(err error) {
	if err != nil {
		panic(err)
	}
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

// before returns the version that the row has for who holds its lock; nil = it does not exist.
func (db *database) before(i int) *lists.Row {
	chain := db.chains[i]
	if len(chain) == 0 {
		return nil
	}
	return chain[len(chain)-1].rows[i]
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

// version makes a version of a row that no other is equal to, but for its position. Half of them have the
// name of the version before.
func (db *database) version(r *rand.Rand, i int) *lists.Row {
	db.versions++
	name := []string{"a", "b", "b red", "c red"}[r.IntN(4)]
	if before := db.before(i); before != nil && r.IntN(2) == 0 {
		name = valuesOf(before).Name
	}
	row := &lists.Row{ID: uuid.UUID{byte(i + 1)}, CreatedAt: int64(r.IntN(4))}
	if r.IntN(2) == 0 {
		row.Flags = lists.Goods
	}
	return row.SetTexts(lists.NameKey(name), modelText(quoted(name), quoted(fmt.Sprint(db.versions)), quoted([]string{"p", "q"}[r.IntN(2)])))
}

// listOf returns what a statement would.
func listOf(k *replica.Key, table []*lists.Row) (list []*lists.Row) {
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
