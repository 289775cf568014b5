package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"listedge/origin"
)

// csvReader reads CSV rows whose columns the header names.
type csvReader struct {
	records
	columns []int // the collection's column of each cell
	count   int   // columns of the collection
}

func newCSVReader(l *lines, c origin.Collection) (*csvReader, error) {
	r := &csvReader{records: records{lines: l}, count: len(c.Columns())}
	if err := r.record(); errors.Is(err, io.EOF) {
		return nil, l.errorAt(1, 1, "", "no header row")
	} else if err != nil {
		return nil, err
	}
	var given uint32
	for _, cell := range r.cells {
		name := r.text(cell)
		column, reason := findColumn(c.Columns(), name, given)
		if reason != "" {
			return nil, l.errorAt(cell.line, cell.column, printable(name), reason)
		}
		given |= 1 << column
		r.columns = append(r.columns, column)
	}
	if missing := missingColumn(c.Columns(), given); missing != "" {
		return nil, l.errorAt(r.cells[0].line, 1, missing, "the column is missing")
	}
	return r, nil
}

func (r *csvReader) next(row *row) error {
	if err := r.record(); err != nil {
		return err
	}
	first := r.cells[0]
	if have, want := len(r.cells), len(r.columns); have != want {
		at := r.cells[min(want, have-1)] // the first cell too many, or else the last cell
		return r.lines.errorAt(at.line, at.column, "", fmt.Sprintf("%d cells, where the header has %d", have, want))
	}
	row.reset(r.count, first.line, first.column)
	for i, c := range r.cells {
		text := r.text(c)
		row.cells[r.columns[i]] = cell{given: true, null: len(text) == 0, text: text, line: c.line, column: c.column}
	}
	return nil
}

// records reads CSV by RFC 4180. Unlike encoding/csv, it keeps a quoted \r\n.
type records struct {
	lines *lines
	raw   []byte // the current line, with its end
	line  []byte // without its end
	at    int    // the next byte of it
	buf   []byte // the texts of the record's cells
	cells []csvCell
}

type csvCell struct {
	start, end   int // in buf
	line, column int
}

func (r *records) text(c csvCell) []byte { return r.buf[c.start:c.end] }

// readLine moves to the next line.
func (r *records) readLine() (err error) {
	r.raw, err = r.lines.next()
	r.line, r.at = content(r.raw), 0
	return err
}

func (r *records) errorHere(reason string) error {
	return r.lines.errorAt(r.lines.number, r.at+1, "", reason)
}

// record reads the next record into cells. It skips blank lines.
func (r *records) record() error {
	r.line = nil
	for len(r.line) == 0 {
		if err := r.readLine(); err != nil {
			return err
		}
	}
	r.buf, r.cells = r.buf[:0], r.cells[:0]
	for {
		c := csvCell{start: len(r.buf), line: r.lines.number, column: r.at + 1}
		read := r.plain
		if r.at < len(r.line) && r.line[r.at] == '"' {
			read = r.quoted
		}
		if err := read(); err != nil {
			return err
		}
		c.end = len(r.buf)
		if len(r.cells) == maxCells {
			return r.lines.errorAt(c.line, c.column, "", tooMany)
		}
		r.cells = append(r.cells, c)
		if r.at == len(r.line) {
			return nil
		}
		r.at++ // the comma
	}
}

// plain reads a cell up to the comma or the line's end.
func (r *records) plain() error {
	text := r.line[r.at:]
	if comma := bytes.IndexByte(text, ','); comma >= 0 {
		text = text[:comma]
	}
	if quote := bytes.IndexByte(text, '"'); quote >= 0 {
		r.at += quote
		return r.errorHere("a quote inside a cell that does not begin with one")
	}
	r.buf = append(r.buf, text...)
	r.at += len(text)
	return nil
}

// quoted reads a cell up to its closing quote, which may be on a later line.
func (r *records) quoted() error {
	line, column := r.lines.number, r.at+1
	r.at++
	for {
		quote := bytes.IndexByte(r.raw[r.at:], '"')
		if quote < 0 {
			r.buf = append(r.buf, r.raw[r.at:]...)
			if len(r.buf) > maxRecord {
				return r.lines.errorAt(line, column, "", tooLong)
			}
			if err := r.readLine(); errors.Is(err, io.EOF) {
				return r.lines.errorAt(line, column, "", "the quote opened here is never closed")
			} else if err != nil {
				return err
			}
			continue
		}
		r.buf = append(r.buf, r.raw[r.at:r.at+quote]...)
		r.at += quote + 1
		switch {
		case r.at < len(r.line) && r.line[r.at] == '"': // two quotes are one
			r.buf = append(r.buf, '"')
			r.at++
		case r.at < len(r.line) && r.line[r.at] != ',':
			return r.errorHere("text after the quote that ends a cell")
		default:
			return nil
		}
	}
}
