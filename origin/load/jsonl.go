package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"listedge/origin"
)

// jsonReader reads JSON Lines: one object per line, which may lack keys.
type jsonReader struct {
	in      *input
	columns []origin.Column
	row     row
}

func newJSONReader(in *input, c origin.Collection) *jsonReader {
	return &jsonReader{in: in, columns: c.Columns(), row: make(row, len(c.Columns()))}
}

func (r *jsonReader) next() (row, error) {
	var line []byte
	for len(line) == 0 {
		var err error
		if line, err = r.in.next(); err != nil {
			return nil, err
		}
		line = bytes.TrimRight(line, blanks)
	}
	errorAt := func(column int, field, reason string) error {
		return r.in.errorAt(r.in.line, column, field, reason)
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(line, new(json.RawMessage)); errors.As(err, &syntax) {
		return nil, errorAt(max(1, int(syntax.Offset)), "", syntax.Error())
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	token := func() (t json.Token, column int) {
		column = len(line) - len(bytes.TrimLeft(line[decoder.InputOffset():], blanks+",:")) + 1
		t, _ = decoder.Token() // the line is valid
		return t, column
	}

	object, begin := token()
	if object != json.Delim('{') {
		return nil, errorAt(begin, "", "wanted a JSON object on each line, found "+kindOf(object))
	}
	clear(r.row)
	for decoder.More() {
		key, column := token()
		i, reason := r.row.find(r.columns, key.(string))
		if reason != "" {
			return nil, errorAt(column, printable(key.(string)), reason)
		}
		value, column := token()
		if reason := checkJSON(&r.columns[i], value, line[column-1:decoder.InputOffset()]); reason != "" {
			return nil, errorAt(column, r.columns[i].Field, reason)
		}
		r.row[i] = cell{given: true, null: value == nil, text: fmt.Sprint(value), line: r.in.line, column: column}
	}
	if missing := r.row.missing(r.columns); missing != "" {
		return nil, errorAt(begin, missing, "the key is missing")
	}
	return r.row, nil
}

// wholePairs matches a JSON string in which each half of a surrogate pair has the other.
// encoding/json silently turns others into U+FFFD.
var wholePairs = regexp.MustCompile(`^"(?:[^\\]|\\[^u]|\\u(?:[^dD]...|[dD][0-7]..|[dD][89abAB]..\\u[dD][c-fC-F]..))*"$`)

// checkJSON returns why the column cannot have that value. A value must have the JSON type
// that the API gives the column.
func checkJSON(c *origin.Column, value json.Token, raw []byte) string {
	wanted := aString
	switch c.Kind {
	case origin.Number:
		wanted = aNumber
	case origin.Bool:
		wanted = aBoolean
	}
	text, _ := value.(string)
	switch found := kindOf(value); {
	case value == nil && !c.Nullable:
		return "must not be null"
	case value != nil && found != wanted:
		return "wanted " + wanted + ", found " + found
	case strings.ContainsRune(text, 0):
		return "a NUL character"
	case strings.ContainsRune(text, utf8.RuneError) && !wholePairs.Match(raw):
		return "half a surrogate pair"
	}
	return ""
}

// The kinds of JSON values, as errors name them.
const (
	aString  = "a string"
	aNumber  = "a number"
	aBoolean = "true or false"
)

func kindOf(t json.Token) string {
	switch t.(type) {
	case string:
		return aString
	case json.Number:
		return aNumber
	case bool:
		return aBoolean
	case nil:
		return "null"
	}
	if t == json.Delim('[') {
		return "an array"
	}
	return "an object"
}
