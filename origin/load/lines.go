package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// RowError says where a file cannot be imported, and why.
type RowError struct {
	File   string
	Line   int    // from 1
	Column int    // in bytes, from 1, as compilers count
	Field  string // empty when the place is not a field
	Reason string
}

func (e *RowError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Reason)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", e.File, e.Line, e.Column, e.Field, e.Reason)
}

// quote returns a value in quotes, for a reason. It cuts a long value.
func quote(text []byte) string {
	short := shorten(text)
	if len(short) < len(text) {
		return strconv.Quote(short) + "…"
	}
	return strconv.Quote(short)
}

// printable returns a name from a file for a message: as it is, or quoted if it is long
// or has characters that must be escaped.
func printable(name []byte) string {
	quoted := quote(name)
	if bare := quoted[1 : len(quoted)-1]; bare == string(name) && bare != "" {
		return bare
	}
	return quoted
}

// shorten returns the beginning of a text, short enough for a message.
func shorten(text []byte) string {
	const shown = 60
	if len(text) <= shown {
		return string(text)
	}
	end := shown
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return string(text[:end])
}

// These limits protect memory from files that are not text, or that lack a closing quote:
// such a file could be one row.
const (
	maxRecord = 4 << 20 // bytes of a row: twice the widest row that a page can contain
	maxCells  = 1000    // cells of a CSV row: a cell takes much more memory than the comma before it
)

// lines reads a file line by line. It refuses text that Postgres cannot store.
type lines struct {
	file   string
	in     *bufio.Reader
	number int    // of the line last read, from 1
	read   int64  // bytes so far
	long   []byte // a line that did not fit the reader's buffer
}

func newLines(file string, in *bufio.Reader) *lines {
	if start, _ := in.Peek(3); string(start) == "\ufeff" { // a byte order mark
		_, _ = in.Discard(3)
	}
	return &lines{file: file, in: in}
}

func (l *lines) errorAt(line, column int, field, reason string) *RowError {
	return &RowError{File: l.file, Line: line, Column: column, Field: field, Reason: reason}
}

// next returns the next line including its line break. The line is valid until the next
// call.
func (l *lines) next() ([]byte, error) {
	line, err := l.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		l.long = l.long[:0]
		for errors.Is(err, bufio.ErrBufferFull) && len(l.long) <= maxRecord {
			l.long = append(l.long, line...)
			line, err = l.in.ReadSlice('\n')
		}
		l.long = append(l.long, line...)
		line = l.long
	}
	if len(line) > 0 {
		l.number++
		l.read += int64(len(line))
	}
	switch {
	case len(line) > maxRecord:
		return nil, l.errorAt(l.number, 1, "", tooLong)
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("read %s: %w", l.file, err)
	case len(line) == 0:
		return nil, io.EOF
	}
	if at := bytes.IndexByte(line, 0); at >= 0 {
		return nil, l.errorAt(l.number, at+1, "", "a NUL character")
	}
	if !utf8.Valid(line) {
		return nil, l.errorAt(l.number, validPrefix(line)+1, "", "not valid UTF-8")
	}
	return line, nil
}

const (
	tooLong = "a row longer than 4 MiB"
	tooMany = "a row of more than 1,000 cells"
)

// validPrefix is how many bytes precede the first one that is not UTF-8.
func validPrefix(b []byte) int {
	for n, r := range string(b) {
		if r == utf8.RuneError && !bytes.HasPrefix(b[n:], []byte("\ufffd")) {
			return n
		}
	}
	return len(b)
}

// content returns a line without its line break.
func content(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte{'\n'}), []byte{'\r'})
}
