package load

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"

	"listedge/origin"
)

// csvReader reads CSV rows whose columns the header names.
type csvReader struct {
	*records
	columns []int // the collection's column of each cell
	row     row
}

func newCSVReader(in *input, c origin.Collection) (*csvReader, error) {
	columns := c.Columns()
	r := &csvReader{records: newRecords(in), row: make(row, len(columns))}
	header, err := r.record()
	if errors.Is(err, io.EOF) {
		return nil, in.errorAt(1, 1, "", "no header row")
	} else if err != nil {
		return nil, err
	}
	for at, name := range header {
		i, reason := r.row.find(columns, name)
		if reason != "" {
			line, column := r.csv.FieldPos(at)
			return nil, in.errorAt(line, column, printable(name), reason)
		}
		r.row[i].given = true
		r.columns = append(r.columns, i)
	}
	if missing := r.row.missing(columns); missing != "" {
		line, _ := r.csv.FieldPos(0)
		return nil, in.errorAt(line, 1, missing, "the column is missing")
	}
	return r, nil
}

func (r *csvReader) next() (row, error) {
	texts, err := r.record()
	if err != nil {
		return nil, err
	}
	if have, want := len(texts), len(r.columns); have != want {
		line, column := r.csv.FieldPos(min(want, have-1)) // the first cell too many, or else the last cell
		return nil, r.in.errorAt(line, column, "", fmt.Sprintf("%d cells, where the header has %d", have, want))
	}
	for at, text := range texts {
		line, column := r.csv.FieldPos(at)
		r.row[r.columns[at]] = cell{given: true, null: text == "", text: text, line: line, column: column}
	}
	return r.row, nil
}

// records reads CSV with encoding/csv, and bounds what that keeps of a record in memory.
type records struct {
	csv  *csv.Reader // reads what Read gives it
	in   *input
	rest []byte // of the current line

	// Of the current record:
	size, cells       int
	quoted            bool // the line ends within quotes
	quoteLine, column int  // where the last quoted cell begins
}

// maxCells bounds the cells of a row: a cell takes much more memory than the comma before it.
const (
	maxCells = 1000
	tooMany  = "a row of more than 1,000 cells"
)

func newRecords(in *input) *records {
	r := &records{in: in}
	r.csv = csv.NewReader(r)
	r.csv.FieldsPerRecord, r.csv.ReuseRecord = -1, true
	return r
}

func (r *records) record() ([]string, error) {
	texts, err := r.csv.Read()
	if syntax := (*csv.ParseError)(nil); errors.As(err, &syntax) {
		return nil, r.in.errorAt(syntax.Line, syntax.Column, "", syntax.Err.Error())
	}
	return texts, err
}

// Read gives encoding/csv the next line, if the record is not too large with it.
func (r *records) Read(p []byte) (n int, err error) {
	if len(r.rest) == 0 {
		if r.rest, err = r.line(); err != nil {
			return 0, err
		}
	}
	n = copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *records) line() ([]byte, error) {
	line, err := r.in.next()
	if errors.Is(err, io.EOF) && r.quoted {
		return nil, r.in.errorAt(r.quoteLine, r.column, "", "the quote opened here is never closed")
	} else if err != nil {
		return nil, err
	}
	if !r.quoted {
		r.size, r.cells = 0, 1
	}
	r.size += len(line)
	for at, c := range line {
		switch {
		case c == '"':
			if r.quoted = !r.quoted; r.quoted && (at == 0 || line[at-1] == ',') { // else the second of two, which are one
				r.quoteLine, r.column = r.in.line, at+1
			}
		case c == ',' && !r.quoted:
			if r.cells++; r.cells > maxCells {
				return nil, r.in.errorAt(r.in.line, at+2, "", tooMany)
			}
		}
	}
	if r.size > maxRecord {
		return nil, r.in.errorAt(r.quoteLine, r.column, "", tooLong)
	}
	if r.quoted && bytes.HasSuffix(line, []byte("\r\n")) { // encoding/csv drops a \r before \n
		line = slices.Concat(line[:len(line)-1], []byte("\r\n"))
	}
	return line, nil
}
