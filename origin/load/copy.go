package load

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin"
)

// Rows are sent in the text format of COPY: values in files are text already, and Postgres
// keeps the scale of a number that it parses from text.

// copyRows sends the rows that appendRow appends, one by one, until it returns io.EOF. If
// the server ends the copy earlier, copyRows calls interrupt, which must end an appendRow
// that waits for input. No appendRow runs after copyRows has returned.
func copyRows(ctx context.Context, tx pgx.Tx, sql string, appendRow func([]byte) ([]byte, error), interrupt func()) error {
	stream, rows := io.Pipe()
	made := make(chan error, 1)
	go func() {
		err := writeRows(ctx, rows, appendRow)
		if err != nil {
			_ = rows.CloseWithError(errStopped)
		} else {
			_ = rows.Close()
		}
		made <- err
	}()
	_, err := tx.Conn().PgConn().CopyFrom(ctx, stream, sql)
	cancelled := ctx.Err()
	if err != nil {
		interrupt()
	}
	_ = stream.CloseWithError(errStopped)
	failed := <-made
	switch {
	case err == nil:
		return nil
	case cancelled != nil:
		return cancelled
	case failed != nil && !errors.Is(failed, errStopped) && !errors.Is(failed, context.Canceled):
		return failed // the server's error says only that the copy ended
	}
	return err
}

// errStopped is the error that the driver sends to the server. The server logs it, so it
// must not contain data of the file.
var errStopped = errors.New("the rows could not be read to their end")

// writeRows writes all rows.
func writeRows(ctx context.Context, to io.Writer, appendRow func([]byte) ([]byte, error)) error {
	out := bufio.NewWriterSize(to, 64<<10)
	var row []byte
	for {
		var err error
		if row, err = appendRow(row[:0]); errors.Is(err, io.EOF) {
			return out.Flush()
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			_, err = out.Write(row)
		}
		if err != nil {
			return err
		}
	}
}

// appendText appends a text in COPY's text format. It works on bytes: in UTF-8 the bytes
// that it escapes are never part of a longer character.
func appendText(dst, text []byte) []byte {
	plain := 0 // text[plain:i] needs no escape
	for i, c := range text {
		escape := c
		switch c {
		case '\\':
		case '\n':
			escape = 'n'
		case '\r':
			escape = 'r'
		case '\t':
			escape = 't'
		default:
			continue
		}
		dst = append(append(dst, text[plain:i]...), '\\', escape)
		plain = i + 1
	}
	return append(dst, text[plain:]...)
}

const copyNull = `\N`

// batch checks the rows of a file and encodes them as rows of the temporary table. Such
// a row has the set of columns that the file gives, then a value for every column. The
// value of a column that is not given is null.
type batch struct {
	columns []origin.Column
	lines   *lines // the input that reader reads
	reader  rowReader
	step    func(rows int64)
	row     row

	count int64
	given map[uint32]struct{}    // the sets of columns that rows have
	ids   map[uuid.UUID]struct{} // of all rows so far
}

func newBatch(c origin.Collection, l *lines, reader rowReader, step func(rows int64)) *batch {
	return &batch{columns: c.Columns(), lines: l, reader: reader, step: step,
		given: map[uint32]struct{}{}, ids: map[uuid.UUID]struct{}{}}
}

// append reads the next row and appends it.
func (b *batch) append(dst []byte) ([]byte, error) {
	if err := b.reader.next(&b.row); err != nil {
		return dst, err
	}
	given, start := uint32(0), len(dst)
	for i := range b.row.cells {
		if b.row.cells[i].given {
			given |= 1 << i
		}
	}
	dst = strconv.AppendUint(dst, uint64(given), 10)
	for i := range b.columns {
		var err error
		if dst, err = b.appendCell(append(dst, '\t'), &b.columns[i], &b.row.cells[i]); err != nil {
			return dst[:start], err
		}
	}
	b.given[given] = struct{}{}
	b.count++
	b.step(b.count)
	return append(dst, '\n'), nil
}

func (b *batch) appendCell(dst []byte, c *origin.Column, v *cell) ([]byte, error) {
	reason := ""
	switch {
	case !v.given || v.null && c.Nullable:
		return append(dst, copyNull...), nil
	case v.null:
		reason = "must not be empty"
	case c.Name == "id":
		if id, ok := parseUUID(v.text); ok {
			if _, twice := b.ids[id]; twice {
				reason = "a second row of this id: " + quote(v.text)
			}
			b.ids[id] = struct{}{}
		}
		fallthrough
	default:
		if reason == "" {
			dst, reason = appendValue(dst, c, v.text)
		}
	}
	if reason != "" {
		return dst, b.lines.errorAt(v.line, v.column, c.Field, reason)
	}
	return dst, nil
}
