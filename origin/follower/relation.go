package follower

import (
	"errors"
	"slices"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/changefeed"
	"listedge/internal/list"
)

// relation is a table or a partition, as the log describes it: before its first change, and again after
// ALTER TABLE or a change of the publication.
type relation struct {
	columns []*pglogrepl.RelationMessageColumn
	layouts map[*list.List]*layout // made when the list's first row comes; setCatalog forgets them
}

func relationOf(m *pglogrepl.RelationMessage) *relation {
	return &relation{columns: m.Columns, layouts: map[*list.List]*layout{}}
}

// keyColumns is what is read of the rows of keys: they are found by their ID.
var keyColumns = []list.Column{{Name: "id", Type: list.Type{OID: pgtype.UUIDOID}}}

// layout returns where the list finds its columns; nil is the keys.
func (r *relation) layout(l *list.List, c catalog) *layout {
	o := r.layouts[l]
	if o != nil {
		return o
	}
	o = &layout{list: l, tenant: 0, key: -1}
	columns := keyColumns
	if l != nil {
		o.tenant, o.key, columns = l.Tenant, l.Key, l.Columns
	}
	for i := range columns {
		at := slices.IndexFunc(r.columns, func(of *pglogrepl.RelationMessageColumn) bool {
			return of.Name == columns[i].Name && c.isOf(of.DataType, columns[i].OID)
		})
		o.at = append(o.at, at)
		o.identity = append(o.identity, at >= 0 && r.columns[at].Flags&1 != 0)
	}
	o.values, o.unsent = make([][]byte, len(columns)), make([]bool, len(columns))
	r.layouts[l] = o
	return o
}

// layout says where a list finds its columns in the rows of a relation. They are found by name: partitions have
// them in any order.
type layout struct {
	list        *list.List // nil = the keys
	at          []int      // by the list's columns; -1 = not published, or of another type
	identity    []bool     // by the list's columns: it is part of the replica identity
	tenant, key int        // among the list's columns; -1 = it has none

	values [][]byte // space for those of one row, by the list's columns
	unsent []bool
}

// version is a row before or after a change. Without columns there is none.
type version struct {
	columns      []*pglogrepl.TupleDataColumn
	identityOnly bool // only those of the replica identity are known to be of this version
}

// value returns the value of one of the list's columns; nil is NULL.
func (o *layout) value(column int, v version) (value []byte, known bool) {
	at := o.at[column]
	if at < 0 || at >= len(v.columns) || v.identityOnly && !o.identity[column] {
		return nil, false
	}
	c := v.columns[at]
	return c.Data, c.DataType == pglogrepl.TupleDataTypeText || c.DataType == pglogrepl.TupleDataTypeNull
}

// spot is where a row is: whose it is, and which of theirs.
type spot struct {
	tenant       string // empty: of a list without tenant, or nobody's
	key          string // of list.List.ParseKey
	owned, keyed bool   // tenant, key are known
}

// spot returns where a version of a row is.
func (o *layout) spot(v version) (s spot) {
	s.owned = true
	if o.tenant >= 0 {
		value, known := o.value(o.tenant, v)
		s.tenant, s.owned = string(value), known
		if o.list != nil && !o.list.IsTenant(s.tenant) { // no workspace can have it
			s.tenant = ""
		}
	}
	if o.key >= 0 {
		value, known := o.value(o.key, v)
		if known {
			s.key, s.keyed = o.list.ParseKey(value)
		}
	}
	return s
}

// table returns whose rows a change at the spot touches.
func (o *layout) table(s spot) changefeed.Table {
	if !s.owned {
		return changefeed.AllRowsOf(o.list).Table
	}
	return changefeed.Table{List: o.list, Tenant: s.tenant}
}

// isNobodys reports whether no tenant sees the spot.
func (o *layout) isNobodys(s spot) bool { return o.tenant >= 0 && s.tenant == "" }

// maxText bounds the text of a row in the log, in bytes. Nodes read a row with a longer
// one from the database.
const maxText = 8 << 10

// row reads the row at a spot. It returns nil if its values do not say for certain whether the list has it now, or
// what filters decide of it. moved says that the row has come from another spot, and left there the large values
// that were not sent.
func (o *layout) row(s spot, v version, moved bool) *list.Row {
	unsent := false
	for i, at := range o.at {
		if at < 0 {
			return nil
		}
		value, sent := o.value(i, v)
		o.values[i], o.unsent[i] = value, !sent
		unsent = unsent || !sent
	}
	live, known := o.list.Lives(o.values, o.unsent)
	if !known {
		return nil
	}
	if !live {
		gone := list.GoneRow(s.key)
		return &gone
	}
	selected := o.list.Selected
	r, err := o.list.Row(o.values[:selected], o.unsent[:selected])
	if err != nil && !errors.Is(err, list.ErrBounds) {
		return nil
	}
	if r.TextSize() > maxText || unsent && moved {
		r.ForgetText()
	}
	return &r
}
