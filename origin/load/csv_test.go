package load

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"listedge/origin"
)

func readRecords(s string) (all [][]string, err error) {
	r := newRecords(newInput("f", strings.NewReader(s)))
	for {
		texts, err := r.record()
		if errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, slices.Clone(texts))
	}
}

// FuzzCSV holds what is read against what the standard library reads alone, where both mean
// the same: text without \r.
func FuzzCSV(f *testing.F) {
	for _, s := range []string{
		"a,b\n1,2\n", "a,b\r\n\"1\r\n\",2\r\n", "\"a\"\"b\",\n\n,\n", "\"", "\"a\n", "a\"b", "\"a\"b", ",,,", "\"\"", "\ufeffa", "a\x00", "\xff", "\r", "a\r", "\"a\",\"b\"\r",
		strings.Repeat("long ", 20) + ",\"" + strings.Repeat("lines\n", 20) + "\"",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := readRecords(s)
		var place *RowError
		if err != nil && (!errors.As(err, &place) || place.Line < 1 || place.Column < 1 || place.Line > strings.Count(s, "\n")+1) {
			t.Fatalf("%q: %v", s, err)
		}
		if strings.ContainsAny(s, "\r\x00") || !utf8.ValidString(s) {
			return
		}
		standard := csv.NewReader(strings.NewReader(strings.TrimPrefix(s, "\ufeff")))
		standard.FieldsPerRecord = -1
		want, wantErr := standard.ReadAll()
		if (err == nil) != (wantErr == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q\ngot  %q, %v\nwant %q, %v", s, got, err, want, wantErr)
		}
		var parse *csv.ParseError
		if errors.As(wantErr, &parse) && errors.Is(parse.Err, csv.ErrBareQuote) && (place.Line != parse.Line || place.Column != parse.Column) {
			t.Errorf("%q: at %d:%d, want %d:%d", s, place.Line, place.Column, parse.Line, parse.Column)
		}
	})
}

func TestCSVKeepsQuotedLineEnds(t *testing.T) {
	got, err := readRecords("a,\"b\r\nc\"\r\n\r\nd,\"\r\"\r\ne,f\r")
	if want := [][]string{{"a", "b\r\nc"}, {"d", "\r"}, {"e", "f"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	endless := io.MultiReader(strings.NewReader("a,\""), &repeated{line: strings.Repeat("x", 1<<20) + "\n"})
	r := newRecords(newInput("f", endless))
	if _, err := r.record(); err == nil || err.Error() != "f:1:3: "+tooLong {
		t.Error(err)
	}
	in := newInput("f", &repeated{line: "x"})
	if _, err := in.next(); err == nil || err.Error() != "f:1:1: "+tooLong {
		t.Error(err)
	}
}

// What a row of nothing but commas takes is a small part of what it did: 100
// bytes for each of them.
func TestCommasTakeNoMemory(t *testing.T) {
	line := strings.Repeat(",", maxRecord-1) + "\n"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := newRecords(newInput("f", strings.NewReader(line)))
	if _, err := r.record(); err == nil || err.Error() != "f:1:1001: "+tooMany {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 8*maxRecord {
		t.Errorf("%d bytes for %d", took, maxRecord)
	}
}

// repeated gives the same again and again.
type repeated struct {
	line string
	at   int
}

func (r *repeated) Read(p []byte) (n int, err error) {
	for n < len(p) {
		k := copy(p[n:], r.line[r.at:])
		n += k
		r.at = (r.at + k) % len(r.line)
	}
	return n, nil
}

// FuzzJSON holds a line against the standard library: what is accepted has the
// same texts there.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{
		`{"id":"a","name":"b"}`, ` { "name" : "\u0061\n\ud83d\ude00\"\\" , "id":"" , "usage30": -1.5e+3,"taxable":true,"sku":null} `,
		`{"id":"a","name":"\ud800"}`, `{}`, `[]`, `1`, `"`, `{"id":"a","name":"b",}`, `{"id":"a","name":"b","sku":"\u0000"}`, `{"id":"\\","name":"\/"}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := newJSONReader(newInput("f", strings.NewReader(s)), origin.Items)
		row, err := r.next()
		var place *RowError
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			if !errors.As(err, &place) || place.Line < 1 || place.Column < 1 {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		line, _, _ := strings.Cut(strings.TrimLeft(strings.TrimPrefix(s, "\ufeff"), " \t\r\n"), "\n")
		var want map[string]any
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.UseNumber()
		if err := decoder.Decode(&want); err != nil {
			t.Fatalf("%q is accepted, though %v", s, err)
		}
		for i, c := range origin.Items.Columns() {
			v, given := want[c.Field]
			if row[i].given != given || row[i].null != (given && v == nil) {
				t.Errorf("%q: %s: %+v", s, c.Field, row[i])
			}
			got := row[i].text
			switch v := v.(type) {
			case string:
				if got != v {
					t.Errorf("%q: %s: %q, want %q", s, c.Field, got, v)
				}
			case json.Number:
				if got != v.String() {
					t.Errorf("%q: %s: %q, want %q", s, c.Field, got, v)
				}
			}
		}
	})
}
