package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"listedge/origin"
)

// jsonReader reads JSON Lines: one object per line, which may lack keys.
type jsonReader struct {
	lines   *lines
	columns []origin.Column
	line    []byte // the current one, a valid JSON value
	at      int    // the next byte of it
	buf     []byte // texts that had escapes
}

func newJSONReader(l *lines, c origin.Collection) *jsonReader {
	return &jsonReader{lines: l, columns: c.Columns()}
}

func (r *jsonReader) errorAt(at int, field, reason string) error {
	return r.lines.errorAt(r.lines.number, at+1, field, reason)
}

func (r *jsonReader) next(row *row) error {
	for r.line = nil; len(r.line) == 0; {
		raw, err := r.lines.next()
		if err != nil {
			return err
		}
		r.line = bytes.TrimRight(raw, " \t\r\n")
	}
	// The code below relies on a valid JSON value.
	var syntax *json.SyntaxError
	if err := json.Unmarshal(r.line, new(json.RawMessage)); errors.As(err, &syntax) {
		return r.errorAt(max(0, int(syntax.Offset)-1), "", syntax.Error())
	} else if err != nil {
		return r.errorAt(0, "", err.Error())
	}
	r.at, r.buf = 0, r.buf[:0]
	r.skip()
	open := r.at
	row.reset(len(r.columns), r.lines.number, open+1)
	if found := r.kind(); found != anObject {
		return r.errorAt(open, "", "wanted a JSON object on each line, found "+found)
	}
	r.at++
	given, err := r.members(row)
	if err != nil {
		return err
	}
	if missing := missingColumn(r.columns, given); missing != "" {
		return r.errorAt(open, missing, "the key is missing")
	}
	return nil
}

// members reads the object after its brace.
func (r *jsonReader) members(row *row) (given uint32, err error) {
	for {
		if r.skip(); r.line[r.at] == '}' {
			return given, nil
		}
		if r.line[r.at] == ',' {
			r.at++
			r.skip()
		}
		keyAt := r.at
		key, err := r.string("")
		if err != nil {
			return 0, err
		}
		column, reason := findColumn(r.columns, key, given)
		if reason != "" {
			return 0, r.errorAt(keyAt, printable(key), reason)
		}
		given |= 1 << column
		r.skip()
		r.at++ // the colon
		r.skip()
		if row.cells[column], err = r.value(&r.columns[column]); err != nil {
			return 0, err
		}
	}
}

// value reads a value. It must have the JSON type that the API gives the column.
func (r *jsonReader) value(c *origin.Column) (v cell, err error) {
	v = cell{given: true, line: r.lines.number, column: r.at + 1}
	wanted := aString
	switch c.Kind {
	case origin.Number:
		wanted = aNumber
	case origin.Bool:
		wanted = aBoolean
	}
	found := r.kind()
	switch {
	case found == aNull && !c.Nullable:
		return v, r.errorAt(r.at, c.Field, "must not be null")
	case found == aNull:
		v.null = true
		r.at += len("null")
	case found != wanted:
		return v, r.errorAt(r.at, c.Field, "wanted "+wanted+", found "+found)
	case found == aString:
		v.text, err = r.string(c.Field)
	default:
		start := r.at
		for r.at < len(r.line) && !bytes.ContainsRune([]byte(",} \t\r\n"), rune(r.line[r.at])) {
			r.at++
		}
		v.text = r.line[start:r.at]
	}
	return v, err
}

// The kinds of JSON values, as errors name them.
const (
	anObject = "an object"
	anArray  = "an array"
	aString  = "a string"
	aNumber  = "a number"
	aBoolean = "true or false"
	aNull    = "null"
)

func (r *jsonReader) kind() string {
	switch r.line[r.at] {
	case '{':
		return anObject
	case '[':
		return anArray
	case '"':
		return aString
	case 't', 'f':
		return aBoolean
	case 'n':
		return aNull
	}
	return aNumber
}

// skip moves over white space.
func (r *jsonReader) skip() {
	for r.at < len(r.line) && (r.line[r.at] == ' ' || r.line[r.at] == '\t' || r.line[r.at] == '\r' || r.line[r.at] == '\n') {
		r.at++
	}
}

// string reads the string value of a field. It undoes escapes itself, because
// encoding/json silently turns half a surrogate pair into U+FFFD.
func (r *jsonReader) string(field string) ([]byte, error) {
	r.at++ // the quote
	rest := r.line[r.at:]
	if end := bytes.IndexByte(rest, '"'); bytes.IndexByte(rest[:end], '\\') < 0 {
		r.at += end + 1
		return rest[:end], nil
	}
	start := len(r.buf)
	for r.line[r.at] != '"' {
		c := r.line[r.at]
		if c != '\\' {
			r.buf = append(r.buf, c)
			r.at++
			continue
		}
		escape := r.line[r.at+1]
		if escape != 'u' {
			r.buf = append(r.buf, unescaped[escape])
			r.at += 2
			continue
		}
		char, size := r.unicode()
		switch {
		case char == 0:
			return nil, r.errorAt(r.at, field, "a NUL character")
		case utf16.IsSurrogate(char):
			return nil, r.errorAt(r.at, field, "half a surrogate pair")
		}
		r.buf = utf8.AppendRune(r.buf, char)
		r.at += size
	}
	r.at++
	return r.buf[start:], nil
}

var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unicode returns the character of a \u escape, or of two (a surrogate pair), and the number
// of bytes that they have.
func (r *jsonReader) unicode() (char rune, size int) {
	unit := func(at int) rune {
		if at+6 > len(r.line) || r.line[at] != '\\' || r.line[at+1] != 'u' {
			return 0
		}
		n, _ := strconv.ParseUint(string(r.line[at+2:at+6]), 16, 16)
		return rune(n)
	}
	char = unit(r.at)
	if pair := utf16.DecodeRune(char, unit(r.at+6)); pair != utf8.RuneError {
		return pair, 12
	}
	return char, 6
}
