package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agnivade/levenshtein"

	"listedge/internal/lists"
)

// BadFile says why a file cannot be imported.
type BadFile struct {
	Faults []string // one for each of the first bad rows, as file:line:column: reason
	Rows   int      // how many rows are bad
}

func (e *BadFile) Error() string { return strings.Join(e.Faults, "\n") }

// maxFaults is how many bad rows are named.
const maxFaults = 20

// add adds a bad row. Columns are counted in bytes from 1, as compilers do.
func (e *BadFile) add(file string, line, column int, reason string) {
	if e.Rows++; e.Rows <= maxFaults {
		e.Faults = append(e.Faults, fmt.Sprintf("%s:%d:%d: %s", file, line, column, reason))
	}
}

// rows reads and checks the rows of a file. It is a pgx.CopyFromSource, which ends at the first
// bad row: the rest of the file is then only checked.
type rows struct {
	in       *source
	csv      *csv.Reader
	columns  []lists.Column // of the file, in its order
	progress *progress

	values []any // of the current row
	ids    map[string]bool
	count  int64
	bad    BadFile
	failed error // of reading
}

func newRows(in *source, c lists.Collection) (*rows, error) {
	r := &rows{in: in, csv: csv.NewReader(in), ids: map[string]bool{}}
	r.csv.FieldsPerRecord, r.csv.ReuseRecord = -1, true
	if reason := in.unlikeCSV(); reason != "" {
		r.bad.add(in.name, 1, 1, reason)
		return nil, &r.bad
	}
	header, err := r.csv.Read()
	if r.fault(err); r.failed != nil {
		return nil, fmt.Errorf("import %s: %w", in.name, err)
	}
	known := c.Columns()
	for at, name := range header {
		line, column := r.csv.FieldPos(at)
		switch i := slices.IndexFunc(known, func(c lists.Column) bool { return c.Field == name }); {
		case i < 0:
			r.bad.add(in.name, line, column, noColumn(name, known))
		case slices.Contains(header[:at], name):
			r.bad.add(in.name, line, column, name+": given twice")
		default:
			r.columns = append(r.columns, known[i])
		}
	}
	switch {
	case header == nil && r.bad.Rows == 0:
		r.bad.add(in.name, 1, 1, "no header row")
	case r.bad.Rows == 0 && !slices.Contains(header, "id"):
		r.bad.add(in.name, 1, 1, "id: the column is missing: each row needs a UUID, by which a later import finds it (make version 5 UUIDs of other identifiers)")
	case r.bad.Rows == 0 && !slices.Contains(header, "name"):
		r.bad.add(in.name, 1, 1, "name: the column is missing")
	}
	if r.values = make([]any, len(r.columns)); r.bad.Rows > 0 {
		return nil, &r.bad
	}
	return r, nil
}

// noColumn says which columns there are.
func noColumn(name string, known []lists.Column) string {
	var fields []string
	nearest, least := "", len(name)/2+1
	for _, c := range known {
		fields = append(fields, c.Field)
		if d := levenshtein.ComputeDistance(strings.ToLower(strings.ReplaceAll(name, "_", "")), strings.ToLower(c.Field)); d < least {
			nearest, least = "; did you mean "+c.Field+"?", d
		}
	}
	return fmt.Sprintf("%s: there is no such column%s (columns: %s)", quote(name), nearest, strings.Join(fields, ", "))
}

// Next implements pgx.CopyFromSource.
func (r *rows) Next() bool {
	for {
		texts, err := r.csv.Read()
		if err != nil {
			r.fault(err)
			return false
		}
		r.count, r.in.row = r.count+1, r.in.read
		if r.check(texts) && r.bad.Rows == 0 {
			if r.count%256 == 0 {
				_ = r.progress.bar.Set64(r.in.read)
			}
			return true
		}
	}
}

// Values implements pgx.CopyFromSource.
func (r *rows) Values() ([]any, error) { return r.values, nil }

// Err implements pgx.CopyFromSource. The server logs it, so it has no data of the file.
func (r *rows) Err() error {
	if r.failed != nil || r.bad.Rows > 0 {
		return errors.New("the rows could not be read to their end")
	}
	return nil
}

// fault adds an error of encoding/csv to the bad rows. Others are the source's.
func (r *rows) fault(err error) {
	if syntax := (*csv.ParseError)(nil); errors.As(err, &syntax) {
		r.bad.add(r.in.name, syntax.Line, syntax.Column, fmt.Sprintf("%v, in the row that begins in line %d", syntax.Err, syntax.StartLine))
	} else if !errors.Is(err, io.EOF) {
		r.failed = err
	}
}

// check checks a row and sets its values.
func (r *rows) check(texts []string) bool {
	if have, want := len(texts), len(r.columns); have != want {
		line, column := r.csv.FieldPos(min(want, have-1)) // the first cell too many, or else the last cell
		r.bad.add(r.in.name, line, column, fmt.Sprintf("%d cells, where the header has %d", have, want))
		return false
	}
	for i, text := range texts {
		c := &r.columns[i]
		value, reason := checkValue(c, text)
		if r.values[i] = value; text == "" {
			r.values[i] = nil
		}
		if c.Name == "id" && reason == "" {
			if r.ids[value] {
				reason = "a second row of this id: " + quote(text)
			}
			r.ids[value] = true
		}
		if reason != "" {
			line, column := r.csv.FieldPos(i)
			r.bad.add(r.in.name, line, column, c.Field+": "+reason)
			return false
		}
	}
	return true
}

// quote returns a value in quotes, for a reason. It cuts a long value.
func quote(text string) string {
	const shown = 60
	if len(text) > shown {
		return strconv.Quote(strings.ToValidUTF8(text[:shown], "")) + "…"
	}
	return strconv.Quote(text)
}

// maxRow is the most bytes of a row: twice the widest row that a page can contain. It
// protects memory from files that are not text, or that lack a closing quote.
const maxRow = 4 << 20

// source is a file for encoding/csv.
type source struct {
	name  string
	size  int64 // -1 = not known
	read  int64 // bytes so far
	row   int64 // bytes when encoding/csv returned the last row
	close func()
	buf   *bufio.Reader
}

// openSource opens the file, or standard input if it is "-".
func openSource(ctx context.Context, file string) (*source, error) {
	s := &source{name: "<stdin>", size: -1, close: func() {}}
	f := os.Stdin
	if file != "-" {
		var err error
		if f, err = os.Open(file); err != nil {
			return nil, err
		}
		s.name, s.close = file, func() { _ = f.Close() }
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			s.size = info.Size()
		}
	}
	s.buf = bufio.NewReaderSize(interruptible(ctx, f), 1<<16)
	if start, _ := s.buf.Peek(3); string(start) == "\ufeff" { // a byte order mark
		_, _ = s.buf.Discard(3)
	}
	return s, nil
}

// interruptible returns a reader whose reads fail when the context ends: a read from a pipe or
// a terminal may never return. That read goes on until the source or the process ends.
func interruptible(ctx context.Context, source io.Reader) io.Reader {
	reader, writer := io.Pipe()
	go func() {
		_, err := io.Copy(writer, source)
		_ = writer.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { _ = reader.CloseWithError(ctx.Err()) })
	return reader
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (n int, err error) {
	if s.read-s.row > maxRow {
		return 0, errors.New("a row is longer than 4 MiB: is a quote not closed?")
	}
	n, err = s.buf.Read(p)
	s.read += int64(n)
	return n, err
}

// unlikeCSV says what the file is, if it begins like something else.
func (s *source) unlikeCSV() string {
	start, _ := s.buf.Peek(4096)
	line, _, _ := bytes.Cut(start, []byte("\n"))
	switch first := strings.TrimLeft(string(start), " \t\r\n"); {
	case bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		return "this is gzip: unpack it first, as by gunzip -c FILE | listedge import … -"
	case bytes.HasPrefix(start, []byte("PK\x03\x04")):
		return "this is a spreadsheet or another zip archive: save it as CSV"
	case bytes.HasPrefix(start, []byte{0xff, 0xfe}), bytes.HasPrefix(start, []byte{0xfe, 0xff}), bytes.IndexByte(line, 0) >= 0 && utf8.Valid(line):
		return "this is UTF-16: save it as UTF-8, as by iconv -f UTF-16 -t UTF-8"
	case strings.HasPrefix(first, "{"), strings.HasPrefix(first, "["):
		return "this is JSON: save it as CSV"
	case !bytes.Contains(line, []byte(",")) && bytes.ContainsAny(line, ";\t"):
		return "the cells are separated by semicolons or tabs: save the file with commas"
	}
	return ""
}
