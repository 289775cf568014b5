package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"listedge/origin"
)

// maxRecord is the most bytes of a row: twice the widest row that a page can contain. It
// protects memory from files that are not text, or that lack a closing quote: such a file
// could be one row.
const (
	maxRecord = 4 << 20
	tooLong   = "a row longer than 4 MiB"
)

// blanks is the white space of JSON.
const blanks = " \t\r\n"

// input is a file being imported. It is read line by line, and refuses text that Postgres
// cannot store.
type input struct {
	name  string
	size  int64 // 0 = not known
	buf   *bufio.Reader
	line  int   // number of the line last read, from 1
	read  int64 // bytes so far
	close func()
}

// openInput opens the file, or standard input if it is "-".
func openInput(ctx context.Context, file string) (*input, error) {
	if file == "-" {
		return newInput("<stdin>", interruptible(ctx, os.Stdin)), nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	in := newInput(file, interruptible(ctx, f))
	in.close = func() { _ = f.Close() }
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		in.size = info.Size()
	}
	return in, nil
}

func newInput(name string, source io.Reader) *input {
	in := &input{name: name, buf: bufio.NewReaderSize(source, maxRecord), close: func() {}}
	if start, _ := in.buf.Peek(3); string(start) == "\ufeff" { // a byte order mark
		_, _ = in.buf.Discard(3)
	}
	return in
}

// interruptible returns a reader of the source whose reads fail when the context ends: a read
// from a pipe or a terminal may never return. The read of the source that is in flight then
// goes on until the source or the process ends.
func interruptible(ctx context.Context, source io.Reader) io.Reader {
	reader, writer := io.Pipe()
	go func() {
		_, err := io.Copy(writer, source)
		_ = writer.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { _ = reader.CloseWithError(ctx.Err()) })
	return reader
}

// rows returns the reader of the file's format. It reads the header of CSV. If the file's
// name does not say the format, JSON begins with a brace.
func (in *input) rows(c origin.Collection) (rowReader, error) {
	json := false
	switch strings.ToLower(filepath.Ext(in.name)) {
	case ".jsonl", ".ndjson", ".json":
		json = true
	case ".csv":
	default:
		start, _ := in.buf.Peek(4096)
		json = bytes.HasPrefix(bytes.TrimLeft(start, blanks), []byte("{"))
	}
	if json {
		return newJSONReader(in, c), nil
	}
	return newCSVReader(in, c)
}

func (in *input) errorAt(line, column int, field, reason string) *RowError {
	return &RowError{File: in.name, Line: line, Column: column, Field: field, Reason: reason}
}

// next returns the next line including its line break. The line is valid until the next
// call.
func (in *input) next() ([]byte, error) {
	line, err := in.buf.ReadSlice('\n')
	if len(line) == 0 {
		return nil, err
	}
	in.line++
	in.read += int64(len(line))
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, in.errorAt(in.line, 1, "", tooLong)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if at := bytes.IndexByte(line, 0); at >= 0 {
		return nil, in.errorAt(in.line, at+1, "", "a NUL character")
	}
	if !utf8.Valid(line) {
		at := bytes.IndexByte(bytes.ToValidUTF8(line, []byte{0}), 0)
		return nil, in.errorAt(in.line, at+1, "", "not valid UTF-8")
	}
	return line, nil
}
