package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"listedge/origin"
)

// cell is the value of one column in a row.
type cell struct {
	given, null  bool   // given: the row has the column
	text         []byte // valid until the next row
	line, column int
}

// row has a cell for each of the collection's columns, and the place where it begins.
type row struct {
	cells        []cell
	line, column int
}

// reset empties the row.
func (r *row) reset(columns, line, column int) {
	if r.cells == nil {
		r.cells = make([]cell, columns)
	}
	clear(r.cells)
	r.line, r.column = line, column
}

// rowReader reads the rows of one format; io.EOF ends them.
type rowReader interface{ next(*row) error }

// input is a file being imported.
type input struct {
	name  string
	size  int64 // 0 = not known
	buf   *bufio.Reader
	lines *lines
	close func()
}

func openInput(ctx context.Context, path string) (*input, error) {
	in := &input{name: path, close: func() {}}
	file := os.Stdin
	if path == "-" {
		in.name = "<stdin>"
	} else {
		var err error
		if file, err = os.Open(path); err != nil {
			return nil, err
		}
		in.close = func() { _ = file.Close() }
	}
	var source io.Reader = file
	info, err := file.Stat()
	switch {
	case err == nil && info.IsDir():
		in.close()
		return nil, fmt.Errorf("read %s: %w", in.name, errors.New("is a directory"))
	case err == nil && info.Mode().Type() == fs.FileMode(0):
		in.size = info.Size()
	default: // a read from a pipe or a terminal may never return
		source = interruptible(ctx, file)
	}
	in.buf = bufio.NewReaderSize(source, 64<<10)
	in.lines = newLines(in.name, in.buf)
	return in, nil
}

// rows returns the reader of the file's format. It reads the header of CSV.
func (in *input) rows(c origin.Collection) (rowReader, error) {
	json := false
	switch strings.ToLower(filepath.Ext(in.name)) {
	case ".jsonl", ".ndjson", ".json":
		json = true
	case ".csv":
	default:
		json = in.beginsWithObject()
	}
	if json {
		return newJSONReader(in.lines, c), nil
	}
	return newCSVReader(in.lines, c)
}

// beginsWithObject says whether the first byte that is not blank is a brace. It reads only
// the buffered beginning of the file.
func (in *input) beginsWithObject() bool {
	for n := 1; ; n++ {
		start, err := in.buf.Peek(n)
		if err != nil {
			return false
		}
		switch start[n-1] {
		case ' ', '\t', '\r', '\n':
		case '{':
			return true
		default:
			return false
		}
	}
}

// interruptible returns a reader of the source whose reads fail when the context ends. The
// read of the source that is in flight then goes on until the source or the process ends.
func interruptible(ctx context.Context, source io.Reader) io.Reader {
	reader, writer := io.Pipe()
	go func() {
		_, err := io.Copy(writer, source)
		_ = writer.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { _ = reader.CloseWithError(ctx.Err()) })
	return reader
}
