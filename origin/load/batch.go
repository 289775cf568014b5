package load

import (
	"github.com/google/uuid"

	"listedge/origin"
)

// batch checks the rows of a file and turns them into rows of the temporary table. Such
// a row has the set of columns that the file gives, then a value for every column. The
// value of a column that is not given is null. A set of columns is a bit mask: bit i is the
// collection's column i.
type batch struct {
	columns  []origin.Column
	in       *input
	reader   rowReader
	progress *Progress

	count int64
	given map[int32]struct{}     // the sets of columns that rows have
	ids   map[uuid.UUID]struct{} // of all rows so far
}

func newBatch(c origin.Collection, in *input, reader rowReader, p *Progress) *batch {
	return &batch{columns: c.Columns(), in: in, reader: reader, progress: p,
		given: map[int32]struct{}{}, ids: map[uuid.UUID]struct{}{}}
}

// next reads the next row.
func (b *batch) next() ([]any, error) {
	row, err := b.reader.next()
	if err != nil {
		return nil, err
	}
	given, values := int32(0), make([]any, 1+len(b.columns))
	for i, cell := range row {
		if !cell.given {
			continue
		}
		given |= 1 << i
		value, reason := b.value(&b.columns[i], cell)
		if reason != "" {
			return nil, b.in.errorAt(cell.line, cell.column, b.columns[i].Field, reason)
		}
		values[1+i] = value
	}
	values[0] = given
	b.given[given] = struct{}{}
	b.count++
	b.progress.step(b.count, b.in.read)
	return values, nil
}

func (b *batch) value(c *origin.Column, v cell) (value any, reason string) {
	switch {
	case v.null && c.Nullable:
		return nil, ""
	case v.null:
		return nil, "must not be empty"
	}
	value, reason = parseValue(c, v.text)
	if id, ok := value.(uuid.UUID); ok && reason == "" && c.Name == "id" {
		if _, twice := b.ids[id]; twice {
			reason = "a second row of this id: " + quote(v.text)
		}
		b.ids[id] = struct{}{}
	}
	return value, reason
}
