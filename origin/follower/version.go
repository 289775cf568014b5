package follower

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/changefeed"
)

// version is a row as a transaction left it.
type version struct {
	row  changefeed.Row
	hash uint64 // of the list and all that the list goes by: position, filters, searched fields; 0 = it is Gone, or that is not known
}

// listedColumn is a column that lists go by.
type listedColumn struct {
	name string
	oid  uint32 // of its type
}

// listedColumns are the columns that lists go by, beside workspace_id and id: the
// conditions and orders of the pages' statements (origin/statements.go). The
// publication has them all (origin/admin/publication.sql).
var listedColumns = [changefeed.Collections][]listedColumn{
	changefeed.Items: {
		atActive: {"active", pgtype.BoolOID}, atCreatedAt: {"created_at", pgtype.TimestamptzOID},
		atName: {"name", pgtype.TextOID}, atSKU: {"sku", pgtype.TextOID}, atDescription: {"description", pgtype.TextOID},
		atType: {"type", pgtype.TextOID}, atTrackStock: {"track_stock", pgtype.BoolOID},
		atStockOnHand: {"stock_on_hand", pgtype.NumericOID}, atReorderPoint: {"reorder_point", pgtype.NumericOID},
	},
	changefeed.Contacts: {
		atActive: {"active", pgtype.BoolOID}, atCreatedAt: {"created_at", pgtype.TimestamptzOID},
		atName: {"name", pgtype.TextOID}, atEmail: {"email", pgtype.TextOID}, atPhone: {"phone", pgtype.TextOID}, atTIN: {"tin", pgtype.TextOID},
		atIsCustomer: {"is_customer", pgtype.BoolOID}, atIsSupplier: {"is_supplier", pgtype.BoolOID},
	},
}

// Places in listedColumns. Of both collections:
const (
	atActive = iota
	atCreatedAt
	atName
)

// Of items:
const (
	atSKU = iota + atName + 1
	atDescription
	atType
	atTrackStock
	atStockOnHand
	atReorderPoint
)

// Of contacts:
const (
	atEmail = iota + atName + 1
	atPhone
	atTIN
	atIsCustomer
	atIsSupplier
)

// searchedColumns are those that searches compare.
var searchedColumns = [changefeed.Collections][]int{changefeed.Items: {atName, atSKU, atDescription}, changefeed.Contacts: {atName, atEmail, atPhone, atTIN}}

// positionsOf finds the columns in a relation's description; nil if one is missing
// or of another type.
func positionsOf(m *pglogrepl.RelationMessage, columns []listedColumn) (at []int) {
	for _, c := range columns {
		i := slices.IndexFunc(m.Columns, func(of *pglogrepl.RelationMessageColumn) bool { return of.Name == c.name && of.DataType == c.oid })
		if i < 0 {
			return nil
		}
		at = append(at, i)
	}
	return at
}

// version reads a row of a list; false if it is not surely known how the list has
// it now.
func (d *decoder) version(list changefeed.List, t *table, row *pglogrepl.TupleData, is tuple) (v version, ok bool) {
	if list.Collection == changefeed.Keys || d.coarse&(1<<list.Collection) != 0 {
		return v, false
	}
	if v.row.ID, ok = valueOf(t.id, row); !ok || is == newRowOfSameKey && !t.id.key {
		return v, false
	}
	if is == oldRow {
		v.row.Flags = changefeed.RowGone
		return v, true
	}
	f := fields{row.Columns, t.listed[list.Collection], false}
	if f.at == nil || slices.Max(f.at) >= len(f.columns) {
		return v, false
	}
	if !f.bool(atActive) {
		v.row.Flags = changefeed.RowGone
		return v, !f.unknown
	}
	v.row.Flags, v.row.CreatedAt = f.flags(list.Collection), f.time(atCreatedAt)
	if c := f.columns[f.at[atName]]; c.DataType == pglogrepl.TupleDataTypeText {
		v.row.NameKey, _ = d.names.Key(string(c.Data))
	}
	v.hash = f.hash(d.seed, list, &v.row)
	return v, !f.unknown
}

// fields are the columns of a row that lists go by.
type fields struct {
	columns []*pglogrepl.TupleDataColumn
	at      []int // table.listed
	unknown bool  // one was asked for that is not sent, or cannot be read
}

// text is a column's text; ok is false of NULL.
func (f *fields) text(column int) (text string, ok bool) {
	switch c := f.columns[f.at[column]]; c.DataType {
	case pglogrepl.TupleDataTypeText:
		return string(c.Data), true
	case pglogrepl.TupleDataTypeNull:
	default: // stored apart, unchanged, and not sent
		f.unknown = true
	}
	return "", false
}

// bool is false of NULL: as a condition of a list, NULL is as good as false.
func (f *fields) bool(column int) bool {
	text, ok := f.text(column)
	f.unknown = f.unknown || ok && text != "t" && text != "f"
	return text == "t"
}

// time is in microseconds since 1970. It is unknown where Postgres writes it
// otherwise than with four digits of the year and ISO's order: of years before
// Christ, from 10000 on, and of infinity.
func (f *fields) time(column int) int64 {
	text, _ := f.text(column)
	t, err := time.Parse("2006-01-02 15:04:05-07", text)
	f.unknown = f.unknown || err != nil
	return t.UnixMicro()
}

func (f *fields) flags(collection changefeed.Collection) (flags changefeed.RowFlags) {
	set := func(flag changefeed.RowFlags, is bool) {
		if is {
			flags |= flag
		}
	}
	if collection == changefeed.Contacts {
		set(changefeed.RowCustomer, f.bool(atIsCustomer))
		set(changefeed.RowSupplier, f.bool(atIsSupplier))
		return flags
	}
	of, _ := f.text(atType)
	set(changefeed.RowGoods, of == "GOODS")
	set(changefeed.RowService, of == "SERVICE")
	if f.bool(atTrackStock) {
		flags |= changefeed.RowTracked
		set(changefeed.RowLow, f.low())
	}
	return flags
}

// low is `stock_on_hand <= reorder_point`.
func (f *fields) low() bool {
	stock, ok := f.text(atStockOnHand)
	reorder, set := f.text(atReorderPoint)
	if !ok || !set {
		return false
	}
	order, ok := compareDecimals(stock, reorder)
	f.unknown = f.unknown || !ok
	return order <= 0
}

// hash is of all that the list goes by; 0 if a searched field is not sent.
func (f *fields) hash(seed maphash.Seed, list changefeed.List, row *changefeed.Row) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	h.Write(list.Workspace[:])
	h.WriteByte(byte(list.Collection))
	h.WriteByte(byte(row.Flags))
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], uint64(row.CreatedAt))
	h.Write(number[:])
	for _, column := range searchedColumns[list.Collection] {
		c := f.columns[f.at[column]]
		if c.DataType != pglogrepl.TupleDataTypeText && c.DataType != pglogrepl.TupleDataTypeNull {
			return 0
		}
		binary.BigEndian.PutUint64(number[:], uint64(len(c.Data)))
		h.WriteByte(c.DataType)
		h.Write(number[:])
		h.Write(c.Data)
	}
	return max(1, h.Sum64())
}
