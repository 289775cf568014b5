package list_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"listedge/internal/list"
)

// described makes the list "things" of a description without its indentation. Each column is a name, a type and
// perhaps a question mark: "at timestamptz(3)", "kind enum(a,b)?".
func described(t testing.TB, description string, columns ...string) *list.List {
	t.Helper()
	l, err := tryDescribed(description, columns...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func tryDescribed(description string, columns ...string) (*list.List, error) {
	form := regexp.MustCompile(`^(\S+) (\w+)(?:\(([^)]*)\))?(\?)?$`)
	r := list.Relation{Name: list.Name{Schema: "public", Table: "things"}, Kind: "r", Persistence: "p", Unique: [][]string{{"id"}}}
	for _, c := range columns {
		m := form.FindStringSubmatch(c)
		of := list.Type{OID: 1, Base: m[2], Name: m[2], Mod: -1}
		if m[2] == "enum" {
			of.Labels, of.Name = strings.Split(m[3], ","), list.Quote("enum "+m[3])
		} else if m[3] != "" {
			mod, _ := strconv.Atoi(m[3])
			of.Mod = int32(mod)
		}
		r.Columns = append(r.Columns, list.RelationColumn{Name: m[1], Type: of, NotNull: m[4] == ""})
	}
	d, err := list.Parse("test.yaml", []byte("lists:\n  things:\n    "+strings.ReplaceAll(strings.TrimSpace(description), "\n", "\n    ")))
	if err != nil {
		return nil, err
	}
	set, err := d.Resolve(&list.Catalogue{Relations: []list.Relation{r}})
	if err != nil {
		return nil, err
	}
	return set.Lists[0], nil
}

// oneField makes a list whose one field besides its id is v.
func oneField(t testing.TB, column, more string) *list.List {
	t.Helper()
	return described(t, fmt.Sprintf("key: id\nfields: {id: , v: {%s}}\norders: {id: {by: id}}", more), "id int4", "v "+column)
}

// bytesOf makes values; "NULL" is NULL.
func bytesOf(texts ...string) (values [][]byte) {
	for _, text := range texts {
		v := []byte(text)
		if text == "NULL" {
			v = nil
		}
		values = append(values, v)
	}
	return values
}

// What Postgres sends is in TestAFieldShowsWhatPostgresSends; here is what it does not, and other forms of it.
func TestAFieldShowsAValue(t *testing.T) {
	const malformed, bounds = "malformed", "bounds"
	for _, c := range []struct{ column, more, value, want string }{
		{"text", "", "", `""`}, {"text", "", "NULL", `""`}, {"text?", "", "NULL", "null"},
		{"bool", "", "true", malformed}, {"bool", "", "", malformed},
		{"int8", "as: decimal", "9223372036854775807", `"9223372036854775807"`},
		{"float4", "", "1e+20", "1e+20"}, {"float8", "", "-1.5e-07", "-1.5e-07"}, {"float8", "", "-0", "-0"}, {"float8", "as: decimal", "0.1", `"0.1"`},
		{"float8", "", "NaN", bounds}, {"float4?", "", "-Infinity", "null"}, {"float8", "", "Infinity", bounds},
		{"numeric", "", "0.00", `"0.00"`}, {"numeric", "as: number", "-123456789012345678901234567890.10", "-123456789012345678901234567890.10"},
		{"numeric", "", "NaN", bounds}, {"numeric?", "", "NaN", "null"}, {"numeric?", "as: number", "Infinity", "null"},
		{"numeric", "", "01", malformed}, {"numeric", "", ".5", malformed}, {"numeric", "", "5.", malformed}, {"numeric", "", "-", malformed},
		{"numeric", "", "", malformed}, {"numeric", "", "1,5", malformed}, {"float8", "", "1e", malformed}, {"float8", "", "1e+", malformed},
		{"timestamptz", "", "infinity", bounds}, {"timestamptz?", "", "-infinity", "null"}, {"date?", "", "infinity", "null"},
		{"timestamptz", "", "10000-01-01 00:00:00+00", bounds}, {"timestamptz?", "", "0001-12-31 23:59:59+00 BC", "null"}, {"date", "", "5874897-12-31", bounds},
		{"date", "", "4714-11-24 BC", bounds}, {"timestamp", "", "294276-12-31 23:59:59.999999", bounds},
		{"timestamptz", "", "2026-01-02 03:04:05+01", malformed}, {"timestamptz", "", "2026-01-02 03:04:05", malformed},
		{"timestamp", "", "2026-01-02 03:04:05+00", malformed}, {"timestamptz", "", "2026-01-02T03:04:05+00", malformed},
		{"timestamptz", "", "02.01.2026 03:04:05 UTC", malformed}, {"timestamptz", "", "2026-13-02 03:04:05+00", malformed},
		{"timestamptz", "", "2026-01-02 03:04:05.+00", malformed}, {"timestamptz", "", "2026-01-02 03:04:05.1234567+00", malformed},
		{"date", "", "2026-01-02 00:00:00", malformed}, {"date", "", "", malformed}, {"date", "", "2026-1-2", malformed},
		{"jsonb", "", `{"a": [1, "}"], "b": null}`, `{"a": [1, "}"], "b": null}`}, {"json", "", " [1,\n2] ", " [1,\n2] "}, {"jsonb?", "", "null", "null"},
		{"json", "", `"a,\"}"`, `"a,\"}"`}, {"json", "", `{"a":1`, malformed}, {"json", "", `1}`, malformed}, {"json", "", `"a`, malformed},
		{"json", "", "", malformed},
	} {
		t.Run(c.column+" "+c.value, func(t *testing.T) {
			l := oneField(t, c.column, c.more)
			values := bytesOf("7", c.value)
			if c.want == `""` { // an empty text is no NULL
				values[1] = []byte{}
			}
			r, err := l.Row(values, nil)
			want := `{"id":7,"v":` + c.want + "}"
			switch c.want {
			case malformed:
				if !errors.Is(err, list.ErrMalformed) || r != (list.Row{}) {
					t.Errorf("%v: %+v", err, r)
				}
			case bounds:
				if !errors.Is(err, list.ErrBounds) || r.State != list.TextUnknown || r.Text() != "" || r.TextSize() != 0 || l.KeyText(r.Key()) != "7" {
					t.Errorf("%v: %+v", err, r)
				}
			default:
				if err != nil || r.Text() != want || !json.Valid([]byte(r.Text())) || r.State != list.Known {
					t.Errorf("%v: %s, want %s", err, r.Text(), want)
				}
			}
		})
	}
}

// A text is a JSON string that reads back as itself and, where encoding/json does not escape more than it must,
// is what that writes, too.
func FuzzATextReadsBackAsItself(f *testing.F) {
	l := oneField(f, "text", "")
	for _, text := range []string{"", "a\"\\\x01\u2028é", "ab/\x00\x1f \x7f\u0080ß茶\ufeff\ufffd😀\U0010FFFF<>&'\n\r\t\b\f", strings.Repeat("\x01", 5000)} {
		f.Add(text)
	}
	for r := range rune(0x500) {
		f.Add("a" + string(r) + "b")
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "\ufffd") // Postgres sends no other
		r, err := l.Row([][]byte{[]byte("1"), []byte(text)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var back struct{ V string }
		err = json.Unmarshal([]byte(r.Text()), &back)
		if err != nil || back.V != text {
			t.Fatalf("%.200q became %.200s: %v", text, r.Text(), err)
		}
		var want bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		err = e.Encode(text)
		if err != nil {
			t.Fatal(err)
		}
		if is := `{"id":1,"v":` + strings.TrimSuffix(want.String(), "\n") + "}"; !strings.ContainsAny(text, "\b\f\u2028\u2029") && r.Text() != is {
			t.Fatalf("%s, but encoding/json writes %s", r.Text(), is)
		}
	})
}

// keyTypes are keys of each type, ascending, and texts that are none.
var keyTypes = map[string]struct{ keys, others []string }{
	"uuid": {[]string{"00000000-0000-0000-0000-000000000000", "0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "ffffffff-ffff-ffff-ffff-ffffffffffff"},
		[]string{"", "0197A1B2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "0197a1b2c3d47e5f8a9b0c1d2e3f4a5b", "{0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b}",
			"0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5", "0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5g", "0197a1b2-c3d4-7e5f-8a9b0-c1d2e3f4a5b"}},
	"int2": {[]string{"-32768", "-1", "0", "1", "255", "256", "32767"}, []string{"", "-", "-0", "00", "01", "+1", "1.0", " 1", "32768", "-32769", "1e1"}},
	"int4": {[]string{"-2147483648", "-1", "0", "65536", "2147483647"}, []string{"2147483648", "-2147483649"}},
	"int8": {[]string{"-9223372036854775808", "-1", "0", "1", "9223372036854775807"},
		[]string{"9223372036854775808", "-9223372036854775809", "10000000000000000000"}},
	"text": {[]string{"A", "A ", "A\u0301", "Z", "a", "ab", "b", "茶", "\U0010ffff"}, nil},
}

func TestAKeyIsReadAsItIsPrinted(t *testing.T) {
	for base, c := range keyTypes {
		t.Run(base, func(t *testing.T) {
			l := described(t, "key: id\nfields: {id: }\norders: {id: {by: v}}", "id "+base, "v int4")
			last := ""
			for i, text := range c.keys {
				key, ok := l.ParseKey([]byte(text))
				if !ok || l.KeyText(key) != text || i > 0 && (key <= last || strings.HasPrefix(key, last)) {
					t.Errorf("%s: %q behind %q, %t", text, key, last, ok)
				}
				last = key
			}
			for _, text := range c.others {
				if key, ok := l.ParseKey([]byte(text)); ok || key != "" {
					t.Errorf("%q is read as %q", text, key)
				}
			}
		})
	}
	l := described(t, "key: id\nfields: {id: }\norders: {id: {by: id}}", "id text")
	for text, want := range map[string]bool{"": true, strings.Repeat("x", 255): true, strings.Repeat("x", 256): false} {
		if key, ok := l.ParseKey([]byte(text)); ok != want || ok && l.KeyText(key) != text {
			t.Errorf("a key of %d bytes: %t", len(text), ok)
		}
	}
	if _, ok := l.ParseKey(nil); ok {
		t.Error("NULL is a key")
	}
}

func TestATenantIsWhatPostgresPrints(t *testing.T) {
	for base, c := range keyTypes {
		t.Run(base, func(t *testing.T) {
			l := described(t, "tenant: owner\nkey: id\nfields: {id: }\norders: {id: {by: id}}", "id int4", "owner "+base+"?")
			for _, text := range c.keys {
				if !l.IsTenant(text) {
					t.Errorf("%q is none", text)
				}
			}
			for _, text := range append(c.others, "", "\xff", "a\x00b", strings.Repeat("x", list.MaxTenant+1)) {
				if l.IsTenant(text) {
					t.Errorf("%q is one", text)
				}
			}
		})
	}
	l := oneField(t, "text", "")
	if !l.IsTenant("") || l.IsTenant("a") || l.Owner("a") != "" {
		t.Error("a list without tenants has another one than the empty one")
	}
}

func TestValuesThatAreShownAsNull(t *testing.T) {
	for column, values := range map[string][]string{"timestamptz?": {"infinity", "10000-01-01 00:00:00+00"}, "float8?": {"NaN"}, "numeric?": {"Infinity"}} {
		l := oneField(t, column, "")
		for _, v := range append(values, "NULL", "1") {
			names, _ := l.Faults(bytesOf("7", v))
			if (len(names) == 1 && names[0] == "the field v") != slices.Contains(values, v) {
				t.Errorf("%s of %s: %q", v, column, names)
			}
		}
	}
}
