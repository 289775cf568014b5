package follower

import (
	"encoding/binary"
	"hash/maphash"
	"math/big"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// version is a row at the end of a transaction, with what decides its place in lists.
type version struct {
	row  changefeed.Row
	hash uint64 // of the list and of the row's position, filters and searched fields; 0 = the row is Gone, or one of these is not known
}

// positionsOf returns where the columns are in a relation's description. It returns nil
// if one is missing or of another type.
func positionsOf(m *pglogrepl.RelationMessage, columns []lists.Column) (at map[string]int) {
	at = map[string]int{}
	for _, c := range columns {
		i := slices.IndexFunc(m.Columns, func(of *pglogrepl.RelationMessageColumn) bool {
			return of.Name == c.Name && of.DataType == c.Kind.OID()
		})
		if i < 0 {
			return nil
		}
		at[c.Name] = i
	}
	return at
}

// version reads a row of a list. ok is false if the message does not say for certain
// whether the list has the row now, or where.
func (d *decoder) version(list changefeed.List, t *table, row *pglogrepl.TupleData, which tuple) (v version, ok bool) {
	if list.Collection == lists.Keys || d.coarse&(1<<list.Collection) != 0 {
		return v, false
	}
	if v.row.ID, ok = valueOf(t.id, row); !ok || which == newRowOfSameKey && !t.id.key {
		return v, false
	}
	if which == oldRow {
		v.row.Flags = changefeed.RowGone
		return v, true
	}
	f := fields{row.Columns, t.listed[list.Collection], false}
	if f.at == nil || len(f.columns) < t.columns {
		return v, false
	}
	if !f.bool("active") {
		v.row.Flags = changefeed.RowGone
		return v, !f.unknown
	}
	v.row.Flags, v.row.CreatedAt = f.flags(list.Collection), f.time("created_at")
	if c := f.columns[f.at["name"]]; c.DataType == pglogrepl.TupleDataTypeText {
		v.row.NameKey = lists.NameKey(string(c.Data))
	}
	v.hash = f.hash(d.seed, list, &v.row)
	return v, !f.unknown
}

// fields reads the deciding columns of a row.
type fields struct {
	columns []*pglogrepl.TupleDataColumn
	at      map[string]int // table.listed
	unknown bool           // a column that was read had not been sent, or could not be parsed
}

// text returns a column's text. ok is false for NULL and for a column that was not sent.
func (f *fields) text(column string) (text string, ok bool) {
	switch c := f.columns[f.at[column]]; c.DataType {
	case pglogrepl.TupleDataTypeText:
		return string(c.Data), true
	case pglogrepl.TupleDataTypeNull:
	default: // an unchanged TOAST value, which Postgres does not send
		f.unknown = true
	}
	return "", false
}

// bool returns false for NULL, as a condition of a list treats it.
func (f *fields) bool(column string) bool {
	text, ok := f.text(column)
	f.unknown = f.unknown || ok && text != "t" && text != "f"
	return text == "t"
}

// time returns microseconds since 1970. It handles years of four digits. Years before
// Christ, years from 10000 on and infinity are unknown.
func (f *fields) time(column string) int64 {
	text, _ := f.text(column)
	t, err := time.Parse("2006-01-02 15:04:05-07", text)
	f.unknown = f.unknown || err != nil
	return t.UnixMicro()
}

// flags returns the values of filters that the row has.
func (f *fields) flags(collection lists.Collection) (flags lists.Flags) {
	for _, filter := range collection.Filters() {
		for _, v := range filter.Values {
			if !slices.ContainsFunc(v.Where, func(c lists.Condition) bool { return !f.holds(&c) }) {
				flags |= v.Flag
			}
		}
	}
	return flags
}

func (f *fields) holds(c *lists.Condition) bool {
	switch {
	case c.Is != "":
		text, _ := f.text(c.Column)
		return text == c.Is
	case c.AtMost != "":
		value, ok := f.decimal(c.Column)
		bound, set := f.decimal(c.AtMost)
		return ok && set && value.Cmp(bound) <= 0
	}
	return f.bool(c.Column)
}

// maxDecimal bounds the length of decimals that are parsed, because parsing takes longer
// than in proportion to it.
const maxDecimal = 10_000

// decimal returns a numeric. ok is false for NULL, and for what is unknown: NaN,
// infinity, and what is too long.
func (f *fields) decimal(column string) (d *big.Rat, ok bool) {
	text, ok := f.text(column)
	if !ok {
		return nil, false
	}
	if ok = len(text) <= maxDecimal; ok {
		d, ok = new(big.Rat).SetString(text)
	}
	f.unknown = f.unknown || !ok
	return d, ok
}

// hash returns version.hash. It is 0 if a searched column was not sent.
func (f *fields) hash(seed maphash.Seed, list changefeed.List, row *changefeed.Row) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	h.Write(list.Workspace[:])
	h.WriteByte(byte(list.Collection))
	h.WriteByte(byte(row.Flags))
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], uint64(row.CreatedAt))
	h.Write(number[:])
	for _, column := range list.Collection.Searched() {
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
