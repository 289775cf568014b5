package follower

import (
	"errors"
	"slices"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// maxText bounds the text of a row in the log, in bytes. Nodes read a row with a longer
// one from the database.
const maxText = 8 << 10

// positionsOf returns where the columns are in a relation's description. It returns nil
// if one is missing or of another type.
func positionsOf(m *pglogrepl.RelationMessage, columns []lists.Column) (at []int) {
	for _, c := range columns {
		i := slices.IndexFunc(m.Columns, func(of *pglogrepl.RelationMessageColumn) bool {
			return of.Name == c.Name && of.DataType == c.Kind.OID() // mutation: a column of another type
		})
		if i < 0 {
			return nil
		}
		at = append(at, i)
	}
	return at
}

// row reads a row of a list. It returns nil if the message does not say for certain which row
// it is, or whether the list has it now.
func (d *decoder) row(list changefeed.List, t *table, sent *pglogrepl.TupleData, which tuple) *lists.Row {
	if list.Collection == lists.Keys || d.coarse&(1<<list.Collection) != 0 {
		return nil
	}
	id, ok := valueOf(t.id, sent)
	if !ok || which == newRowOfSameKey && !t.id.key { // mutation: an id that an update may have changed
		return nil
	}
	gone := &lists.Row{ID: id, Flags: lists.Gone}
	if which == oldRow {
		return gone
	}
	at := t.listed[list.Collection]
	if at == nil || len(sent.Columns) < t.columns {
		return nil
	}
	values := make([][]byte, 0, 32)
	unsent := uint64(0)
	for i, column := range list.Collection.Columns() {
		var value []byte
		switch v := sent.Columns[at[i]]; v.DataType {
		case pglogrepl.TupleDataTypeNull:
		case pglogrepl.TupleDataTypeBinary:
			value = v.Data
		default: // an unchanged TOAST value, which Postgres does not send
			if list.Collection.IsFilteredBy(column.Name) { // mutation: a filter's value that is not sent is NULL
				return nil
			}
			unsent |= 1 << i // mutation: a value that is not sent is NULL
		}
		values = append(values, value)
	}
	listed := len(values) - 1
	if active := values[listed]; len(active) == 0 || active[0] == 0 { // NULL, too; mutation: an inactive row is listed
		return gone
	}
	r, err := list.Collection.Row(values[:listed], unsent)
	if err != nil && !errors.Is(err, lists.ErrBounds) {
		return nil
	}
	if len(r.Text()) > maxText { // mutation: a text of any length
		r.SetTexts(r.NameKey(), "")
	}
	return &r
}
