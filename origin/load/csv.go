package load

import (
	"bufio"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/schollz/progressbar/v3"

	"listedge/internal/lists"
)

// BadFile says why a file cannot be imported.
type BadFile struct {
	Faults []string // one for each of the first bad rows, as file:line:column: reason
	Rows   int      // how many rows are bad
}

func (e *BadFile) Error() string {
	text := strings.Join(e.Faults, "\n")
	if more := e.Rows - len(e.Faults); more > 0 {
		text += fmt.Sprintf("\nand %d more bad rows", more)
	}
	return text
}

// add adds a bad row. Columns are counted in bytes from 1, as compilers do.
func (r *rows) add(line, column int, reason string) {
	r.failed = &r.bad
	if r.bad.Rows++; r.bad.Rows <= 20 {
		r.bad.Faults = append(r.bad.Faults, fmt.Sprintf("%s:%d:%d: %s", r.name, line, column, reason))
	}
}

// maxRow is the most bytes of a row: twice the widest row that a page can contain. It
// protects memory from files that are not text, or that lack a closing quote.
const maxRow = 4 << 20

// rows reads and checks the rows of a file.
type rows struct {
	name    string
	file    io.Reader
	csv     *csv.Reader
	columns []lists.Column // of the file, in its order
	bar     *progressbar.ProgressBar

	read, row int64 // how many bytes were read, and how many when encoding/csv returned the last row
	ids       map[string]bool
	bad       BadFile
	failed    error // why the file cannot be imported: &bad, or why it cannot be read; nil = it can
}

// openRows opens the file, or standard input if it is "-", and reads its header.
func openRows(ctx context.Context, file string, c lists.Collection, out io.Writer) (r *rows, err error) {
	f, size := os.Stdin, int64(-1)
	r = &rows{name: "<stdin>", ids: map[string]bool{}}
	if file != "-" {
		if f, err = os.Open(file); err != nil {
			return nil, err
		}
		r.name = file
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
	}
	buffered := bufio.NewReaderSize(interruptible(ctx, f), 1<<16)
	if start, _ := buffered.Peek(3); string(start) == "\ufeff" { // a byte order mark
		_, _ = buffered.Discard(3)
	}
	r.file, r.csv, r.bar = buffered, csv.NewReader(r), startProgress(out, c.String(), size, true)
	r.csv.FieldsPerRecord, r.csv.ReuseRecord = -1, true
	r.header(c.Columns())
	return r, nil
}

// header reads which columns the file has.
func (r *rows) header(known []lists.Column) {
	header, err := r.csv.Read()
	if r.fault(err); r.failed != nil {
		return
	}
	var fields []string
	for _, c := range known {
		fields = append(fields, c.Field)
	}
	for at, name := range header {
		line, column := r.csv.FieldPos(at)
		i := slices.Index(fields, name)
		if i < 0 {
			const reason = "%s: there is no such column (a file is CSV in UTF-8, with commas, and has the columns %s)"
			r.add(line, column, fmt.Sprintf(reason, quote(name), strings.Join(fields, ", ")))
			return
		}
		if slices.Contains(header[:at], name) {
			r.add(line, column, name+": given twice")
		}
		r.columns = append(r.columns, known[i])
	}
	switch {
	case header == nil:
		r.add(1, 1, "no header row")
	case !slices.Contains(header, "id"):
		r.add(1, 1, "id: the column is missing: each row needs a UUID, by which a later import finds it (make version 5 UUIDs of other identifiers)")
	case !slices.Contains(header, "name"):
		r.add(1, 1, "name: the column is missing")
	}
}

// next returns the next row, or nil at the end of the file. From a bad row on it only checks the
// file, and ends the copy with an error. The server logs that, so it has no data of the file.
func (r *rows) next() ([]any, error) {
	texts, err := r.csv.Read()
	for ; err == nil; texts, err = r.csv.Read() {
		r.row = r.read
		if values := r.check(texts); r.failed == nil {
			return values, nil
		}
	}
	if r.fault(err); r.failed != nil {
		return nil, errors.New("the rows could not be read to their end")
	}
	return nil, nil
}

// fault adds an error of encoding/csv to the bad rows. Any other error is one of the file.
func (r *rows) fault(err error) {
	if syntax := (*csv.ParseError)(nil); errors.As(err, &syntax) {
		r.add(syntax.Line, syntax.Column, fmt.Sprintf("%v, in the row that begins in line %d", syntax.Err, syntax.StartLine))
	} else if !errors.Is(err, io.EOF) {
		r.failed = cmp.Or(r.failed, err)
	}
}

// check returns the values of a row. It adds a bad row, once.
func (r *rows) check(texts []string) []any {
	if have, want := len(texts), len(r.columns); have != want {
		line, column := r.csv.FieldPos(min(want, have-1)) // the first cell too many, or else the last cell
		r.add(line, column, fmt.Sprintf("%d cells, where the header has %d", have, want))
		return nil
	}
	values := make([]any, len(texts))
	for i, text := range texts {
		c, reason := &r.columns[i], ""
		values[i], reason = checkValue(c, text)
		if c.Name == "id" && reason == "" {
			id := strings.ToLower(text)
			if r.ids[id] {
				reason = "a second row of this id: " + quote(id)
			}
			r.ids[id] = true
		}
		if reason != "" {
			line, column := r.csv.FieldPos(i)
			r.add(line, column, c.Field+": "+reason)
			return nil
		}
	}
	return values
}

// Read implements io.Reader for encoding/csv.
func (r *rows) Read(p []byte) (n int, err error) {
	if r.read-r.row > maxRow {
		return 0, errors.New("a row is longer than 4 MiB: is a quote not closed?")
	}
	n, err = r.file.Read(p)
	r.read += int64(n)
	_ = r.bar.Set64(r.read)
	return n, err
}

// interruptible returns a reader whose reads fail when the context ends: a read from a pipe or
// a terminal may never return. That read goes on until the file or the process ends.
func interruptible(ctx context.Context, file *os.File) io.Reader {
	reader, writer := io.Pipe()
	go func() {
		_, err := io.Copy(writer, file)
		_ = writer.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { _, _ = reader.CloseWithError(ctx.Err()), file.Close() })
	return reader
}
