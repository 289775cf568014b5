package list_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"listedge/internal/list"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/origin/postgres"
)

var shared = postgrestest.Shared{Settings: postgrestest.Fast, Prepare: func(context.Context, *sandbox.Postgres) error { return nil }}

func TestMain(m *testing.M) { shared.Main(m) }

// texts runs a statement as nodes do, with texts as parameters, and returns its rows.
type texts func(sql string, parameters ...string) [][][]byte

// database opens an empty database.
func database(t *testing.T) texts {
	t.Helper()
	conn := postgrestest.Connect(t, shared.CopyOf(t, "template0")).PgConn()
	run := func(sql string, parameters ...string) [][][]byte {
		t.Helper()
		var values [][]byte
		for _, p := range parameters {
			values = append(values, []byte(p))
		}
		result := conn.ExecParams(t.Context(), sql, values, nil, nil, nil).Read()
		if result.Err != nil {
			t.Fatalf("%v\n%.2000s", result.Err, sql)
		}
		return result.Rows
	}
	for name, value := range postgres.TextSettings {
		run("SELECT set_config($1, $2, false)", name, value)
	}
	return run
}

// A value of each type, as a statement has it, and as a page shows it.
func TestAFieldShowsWhatPostgresSends(t *testing.T) {
	run := database(t)
	run("CREATE EXTENSION citext")
	run("CREATE TYPE mood AS ENUM ('so so', 'ä\"')")
	run("CREATE DOMAIN amount AS numeric(40,4)")
	nines := strings.Repeat("9", 1000)
	for _, c := range []struct{ column, sql, value, want string }{
		{"text", "text", `E'a"\\\u0001\n\t\u2028é/'`, `"a\"\\\u0001\n\t` + "\u2028" + `é/"`}, {"text", "varchar(3)", "''", `""`},
		{"bpchar", "char(4)", "'ab'", `"ab  "`}, {"name", "name", "'Ab'", `"Ab"`}, {"citext", "citext", "'Ab'", `"Ab"`}, {"enum(so so,ä\")", "mood", `'ä"'`, `"ä\""`},
		{"uuid", "uuid", "'{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}'", `"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"`},
		{"bool", "bool", "'yes'", "true"}, {"bool", "bool", "false", "false"},
		{"int2", "int2", "'-32768'", "-32768"}, {"int4", "int4", "'-2147483648'", "-2147483648"}, {"int8", "int8", "'-9223372036854775808'", "-9223372036854775808"},
		{"float4", "float4", "'3.4028235e38'", "3.4028235e+38"}, {"float4", "float4", "'1e-45'", "1e-45"}, {"float4", "float4", "0.1", "0.1"},
		{"float8", "float8", "'1.7976931348623157e308'", "1.7976931348623157e+308"}, {"float8", "float8", "'5e-324'", "5e-324"}, {"float8", "float8", "'-0'", "-0"},
		{"float8", "float8", "1e15", "1e+15"}, {"float8", "float8", "123456.789", "123456.789"}, {"float8?", "float8", "'NaN'", "null"},
		{"float8?", "float8", "'-inf'", "null"},
		{"numeric", "numeric", "1.10", `"1.10"`}, {"numeric", "numeric", nines + "." + nines, `"` + nines + "." + nines + `"`},
		{"numeric", "numeric", "-0.00", `"0.00"`},
		{"numeric", "amount", "-1e30", `"-1` + strings.Repeat("0", 30) + `.0000"`}, {"numeric", "numeric", "1e-5", `"0.00001"`},
		{"numeric?", "numeric", "'NaN'", "null"},
		{"numeric?", "numeric", "'Infinity'", "null"}, {"numeric?", "numeric", "'-Infinity'", "null"},
		{"timestamptz", "timestamptz", "'2026-01-02 03:04:05.123456+05:30'", `"2026-01-01T21:34:05.123456Z"`},
		{"timestamptz(3)", "timestamptz(3)", "'2026-01-02 03:04:05.9996Z'", `"2026-01-02T03:04:06.000Z"`},
		{"timestamptz(0)", "timestamptz(0)", "'0001-01-01 00:00:00Z'", `"0001-01-01T00:00:00.000Z"`},
		{"timestamptz", "timestamptz", "'9999-12-31 23:59:59.999999Z'", `"9999-12-31T23:59:59.999999Z"`},
		{"timestamptz?", "timestamptz", "'9999-12-31 23:59:59.9999995Z'", "null"},
		{"timestamptz?", "timestamptz", "'0001-01-01 00:00Z'::timestamptz - interval '1us'", "null"}, {"timestamptz?", "timestamptz", "'-infinity'", "null"},
		{"timestamptz?", "timestamptz", "'4714-11-24 00:00Z BC'", "null"}, {"timestamptz?", "timestamptz", "'294276-12-31 23:59:59.999999Z'", "null"},
		{"timestamptz", "timestamptz", "'1883-11-18 12:00:00 America/New_York'", `"1883-11-18T17:00:00.000000Z"`},
		{"timestamp", "timestamp", "'2024-02-29 23:59:60'", `"2024-03-01T00:00:00.000000Z"`},
		{"timestamp(1)", "timestamp(1)", "'2026-01-02 03:04:05.06'", `"2026-01-02T03:04:05.100Z"`},
		{"timestamp?", "timestamp", "'infinity'", "null"}, {"date", "date", "'0001-01-01'", `"0001-01-01T00:00:00.000Z"`},
		{"date?", "date", "'5874897-12-31'", "null"},
		{"date?", "date", "'4714-11-24 BC'", "null"}, {"date?", "date", "'infinity'", "null"},
		{"json", "json", `' {"b":1, "b":[1.50, "\u00e9"]}'`, ` {"b":1, "b":[1.50, "\u00e9"]}`},
		{"jsonb", "jsonb", `'{"b":1.50,"a":["}\"", null, 1e3]}'`, `{"a": ["}\"", null, 1000], "b": 1.50}`}, {"jsonb", "jsonb", `'"x"'`, `"x"`},
		{"json?", "json", "NULL", "null"},
	} {
		t.Run(c.sql+" "+c.value[:min(len(c.value), 40)], func(t *testing.T) {
			row := run(fmt.Sprintf("SELECT 7, (%s)::%s", c.value, c.sql))[0]
			r, err := oneField(t, c.column, "").Row(row, nil)
			if want := `{"id":7,"v":` + c.want + "}"; err != nil || r.Text() != want {
				t.Errorf("%v: %s, want %s", err, r.Text(), want)
			}
		})
	}
}

// ordered are values of each type that can order.
var ordered = map[string][]string{
	"int2":   {"-32768", "-1", "0", "1", "32767"},
	"int4":   {"-2147483648", "-256", "-1", "0", "255", "256", "2147483647"},
	"int8":   {"-9223372036854775808", "-1", "0", "9223372036854775807"},
	"text":   {"", " ", "A", "A\x01", "A ", "AB", "a", "é", "茶", "\ufffd", "\U0010ffff"},
	"bpchar": {"\n   ", "\t", " A", "A  ", "A", "A ", "B    ", "a"},
	"citext": {"A", "B", "a"},
	"name":   {"", "A", "_", "a"},
	"date": {"-infinity", "4714-11-24 BC", "0001-12-31 BC", "0001-01-01", "1999-12-31", "2000-02-29", "2000-03-01", "9999-12-31", "10000-01-01",
		"5874897-12-31", "infinity"},
	"numeric": append(randomNumerics(), "-Infinity", "-1"+strings.Repeat("0", 380), "-123456.01", "-123456", "-99.99", "-99.990", "-10", "-10.00", "-1.05",
		"-0.0001", "0", "0.000", "0."+strings.Repeat("0", 370)+"1", "0.001", "0.09", "0.1", "0.10", "0.101", "1.0000", "9", "10", "10.5", "9999.9999",
		"1"+strings.Repeat("0", 380), "Infinity", "NaN"),
	"timestamp": {"-infinity", "4714-11-24 00:00:00 BC", "0001-12-31 23:59:59.999999 BC", "0001-01-01 00:00:00", "1999-12-31 23:59:59.999999",
		"2000-01-01 00:00:00",
		"2000-01-01 00:00:00.000001", "2024-02-29 23:59:59.1", "2024-03-01 00:00:00", "9999-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999", "infinity"},
	"timestamptz": {"-infinity", "4714-11-24 00:00:00+00 BC", "0044-03-15 12:00:00+00 BC", "1969-12-31 23:59:59.9+00", "1970-01-01 00:00:00+00",
		"2026-01-02 03:04:05.67+00", "2026-01-02 03:04:05.678+00", "294276-12-31 23:59:59.999999+00", "infinity"},
}

func randomNumerics() (numbers []string) {
	random := rand.New(rand.NewPCG(1, 2))
	digits := func(of string, most int) (text string) {
		for range random.IntN(most + 1) {
			text += string(of[random.IntN(len(of))])
		}
		return text
	}
	for range 500 {
		numbers = append(numbers, strings.Repeat("-", random.IntN(2))+"0"+digits("01359", 9)+"."+"0"+digits("0019", 8))
	}
	return numbers
}

// Positions are in the order of Postgres, of the value and then of the key, and it takes what is read from them.
func TestPositionsSortAsPostgresDoes(t *testing.T) {
	run := database(t)
	run("CREATE EXTENSION citext")
	random := rand.New(rand.NewPCG(3, 4))
	for base, values := range ordered {
		t.Run(base, func(t *testing.T) {
			of := strings.Replace(base, "bpchar", "char(9)", 1)
			run(fmt.Sprintf("CREATE TABLE things_%s (id int2 PRIMARY KEY, v %s NOT NULL)", base, of))
			for i, v := range append(values, values...) {
				run(fmt.Sprintf("INSERT INTO things_%s VALUES ($1::text::int2, $2::text::%s)", base, of), fmt.Sprint(random.IntN(20)*1500+i-15000), v)
			}
			by := list.Quote("v")
			if slices.Contains([]string{"text", "bpchar", "citext", "name"}, base) {
				by = `"v"::text COLLATE "C"`
			}
			for direction, descending := range map[string]bool{"": false, " DESC": true} {
				l := described(t, fmt.Sprintf("key: id\nfields: {id: }\norders: {v: {by: v, descending: %t}}", descending), "id int2", "v "+base)
				var last list.Position
				rows := run(fmt.Sprintf("SELECT id, v FROM things_%s ORDER BY %s%s, id%[3]s", base, by, direction))
				for _, values := range rows {
					r, err := l.Row(values, nil)
					if err != nil {
						t.Fatal(err)
					}
					p := l.Position(&r, 0)
					value, key, ok := l.ParsePosition(0, p)
					found := run(fmt.Sprintf("SELECT id, v FROM things_%s WHERE id = $1::text::int2 AND %s = $2::text::%s", base, by,
						strings.Replace(base, "bpchar", "text", 1)), key, value)
					if !ok || len(found) != 1 || l.KeyText(r.Key()) != key || p <= last {
						t.Fatalf("%q at %q, behind %q, is read as %q %q", values, p, last, value, key)
					}
					checkPosition(t, l, &r, p, last)
					last = p
				}
				if len(rows) != 2*len(values) {
					t.Errorf("%d rows%s", len(rows), direction)
				}
			}
		})
	}
}

// checkPosition checks that a row compares as its position does, that the row of the position before is before it, and that no part is a position.
func checkPosition(t *testing.T, l *list.List, r *list.Row, p, before list.Position) {
	t.Helper()
	if !l.IsPosition(0, p) || len(p) > list.MaxPosition || strings.HasPrefix(string(p), strings.Repeat("\xff", 32)) || l.Compare(r, 0, before) != 1 ||
		l.Compare(r, 0, p) != 0 || l.Compare(r, 0, p[:len(p)-1]) != 1 || l.Compare(r, 0, p+"\x00") != -1 ||
		l.Compare(r, 0, list.Position(bytes.Repeat([]byte{0xff}, 32))) != -1 {
		t.Fatalf("%q does not compare as its position does", p)
	}
	for n := range len(p) {
		if l.IsPosition(0, p[:n]) {
			t.Fatalf("%q, which begins %q, is a position", p[:n], p)
		}
	}
}

// What a cursor may say is what Postgres takes, up to the extremes of each type.
func TestPostgresTakesEachPosition(t *testing.T) {
	run := database(t)
	for _, base := range []string{"numeric", "timestamptz", "timestamp", "date"} {
		values := []string{"infinity", "-infinity", "4714-11-24 BC", "294276-12-31 23:59:59.9994Z"}
		if base == "numeric" {
			values = []string{"1e131071", "9e131071", "1e-16383", "12e-16383", "-1e-16383", "0", "NaN", "Infinity", "-Infinity", "0.1", "10"}
		}
		l := described(t, "key: id\nfields: {id: }\norders: {v: {by: v}}", "id int2", "v "+base)
		taken := 0
		for _, v := range values {
			row := run(fmt.Sprintf("SELECT 1::int2, $1::text::%s", base), v)[0]
			r, err := l.Row(row, nil)
			if err != nil {
				t.Fatalf("%s %s: %v", base, v, err)
			}
			p := []byte(l.Position(&r, 0))
			for i := range p { // and its neighbours
				for _, d := range []int{-10, -1, 0, 1, 9} {
					near := slices.Clone(p)
					near[i] += byte(d)
					value, _, ok := l.ParsePosition(0, list.Position(near))
					if ok {
						taken++
						run("SELECT $1::text::"+base, value)
					}
				}
			}
		}
		if taken < len(values) {
			t.Errorf("%s: %d", base, taken)
		}
	}
}

// Postgres rounds an instant beyond the last one that it takes: such a row cannot be shown, and the others can.
func TestAnInstantThatIsRoundedOutOfRange(t *testing.T) {
	run := database(t)
	for _, base := range []string{"timestamptz", "timestamp"} {
		row := run(fmt.Sprintf("SELECT 7, '294276-12-31 23:59:59.9999'::%s(3)", base))[0]
		r, err := oneField(t, base+"(3)?", "").Row(row, nil)
		if err != nil || r.Text() != `{"id":7,"v":null}` {
			t.Errorf("%s: %v: %s", row[1], err, r.Text())
		}
		l := described(t, "key: id\nfields: {id: }\norders: {v: {by: v}}", "id int4", "v "+base+"(3)")
		_, err = l.Row(row, nil)
		_, unshown := l.Faults(row)
		if !errors.Is(err, list.ErrBounds) || !slices.Equal(unshown, []string{"the order v"}) {
			t.Errorf("%v: %v", err, unshown)
		}
	}
}

// A text with blanks at its end is compared with a char(n) as Postgres compares it, also if it is written as pages show it.
func TestBlanksAtTheEndOfAChar(t *testing.T) {
	run := database(t)
	run("CREATE TABLE things (id int4, code char(4))")
	run("INSERT INTO things VALUES (1, 'ab'), (2, 'a'), (3, ' b')")
	for _, value := range []string{"ab", "ab  ", "ab      ", "a", " b", "b"} {
		for _, operator := range []string{"=", "<>", "<"} {
			l := described(t, fmt.Sprintf("key: id\nlive: code %s '%s'\nfields: {id: , code: }\norders: {id: {by: id}}\nsearch: [code]", operator, value),
				"id int4", "code bpchar")
			for _, row := range run(fmt.Sprintf(`SELECT id, code, code %s '%s' COLLATE "C", %s IS TRUE FROM things`, operator, value, l.Live)) {
				live, _ := l.Lives([][]byte{row[0], row[1]}, nil)
				if want := string(row[2]) == "t"; live != want || string(row[3]) != string(row[2]) {
					t.Errorf("%q %s %q: %t, %s, want %t", row[1], operator, value, live, row[3], want)
				}
				r, _ := l.Row(row[:l.Selected], nil)
				searched, _ := l.SearchText(&r)
				if want := strings.ToUpper(strings.TrimRight(string(row[1]), " ")) + "\x00"; searched != want {
					t.Errorf("%q, want %q", searched, want)
				}
			}
		}
	}
}

// A condition holds for the rows for which it is true in Postgres, with every operator between all types and
// NULL; and an index may have it.
func TestAConditionHoldsAsInPostgres(t *testing.T) {
	run := database(t)
	run("CREATE EXTENSION citext")
	run("CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level1', deterministic = false)")
	run("CREATE TYPE \"enum b,a\" AS ENUM ('b', 'a')")
	run("CREATE DOMAIN domain AS \"enum b,a\"")
	run("CREATE DOMAIN truth AS bool")
	run("CREATE DOMAIN amount AS numeric")
	numbers := strings.Fields("NULL -32768 -10 -1 0 1 9 10 32767")
	decimals := append(slices.Clone(numbers), strings.Fields("NaN Infinity -Infinity -1.50 -0.5 0.00 1.000 1.01 9.99 10.0 123456789012345678901234567890.5")...)
	words := []string{"NULL", "", "a", "A", "a ", "b", "ä", "茶", "'"}
	columns := []struct {
		name, base, sql string
		values          []string
	}{
		{"id", "int4", "int4", []string{"1"}},
		{"flag", "bool", "bool", []string{"NULL", "t", "f"}}, {"truth", "bool", "truth", []string{"NULL", "t", "f"}},
		{"text", "text", "text COLLATE caseless", words}, {"brief", "varchar", "varchar(9)", words}, {"short", "bpchar", "char(3)", words},
		{"loose", "citext", "citext", words},
		{"name", "name", "name", words}, {"kind", "enum(b,a)", `"enum b,a"`, []string{"NULL", "a", "b"}}, {"also", "enum(b,a)", "domain", []string{"NULL", "a", "b"}},
		{"small", "int2", "int2", numbers}, {"big", "int8", "int8", numbers}, {"n", "numeric", "numeric", decimals}, {"Mo\"ney", "numeric", "amount", decimals},
		{"at", "timestamptz", "timestamptz", []string{"NULL", "infinity"}}, {"tags", "_text", "text[]", []string{"NULL", "{}"}},
	}
	groups := [][]string{{"flag", "truth", "true", "false"}, {"text", "brief", "short", "loose", "name", "'a'", "'A'", "''", "'a '", "''''", "'茶'"},
		{"kind", "also", "'a'", "'b'"},
		{"small", "big", "n", `"Mo""ney"`, "0", "-1", "-1.50", "10", "1.010", "99999999999999999999", "-0", "0.0"}}
	conditions := append(comparisons(groups), "flag", "not truth", "flag and small < n and text <> brief", "at is null and tags is not null and kind is not null")
	var shown, created []string
	for _, c := range columns {
		shown = append(shown, c.name+" "+c.base+"?")
		created = append(created, list.Quote(c.name)+" "+c.sql)
	}
	shown[0] = "id int4"
	run("CREATE TABLE things (" + strings.Join(created, ", ") + ")")
	run("CREATE TABLE nothing (LIKE things)")
	random := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		var values []string
		for _, c := range columns {
			v := c.values[random.IntN(len(c.values))]
			if v != "NULL" {
				v = "'" + strings.ReplaceAll(v, "'", "''") + "'"
			}
			values = append(values, v)
		}
		run("INSERT INTO things VALUES (" + strings.Join(values, ", ") + ")")
	}
	for some := range slices.Chunk(conditions, list.MaxValues) {
		description := "key: id\nfields: {id: }\norders: {id: {by: id}}\nfilters:\n  f:"
		for i, c := range some {
			description += fmt.Sprintf("\n    v%d: %q", i, c)
		}
		checkConditions(t, run, described(t, description, shown...), some)
	}
}

// comparisons are those of each column with all else in its group, by all operators.
func comparisons(groups [][]string) (conditions []string) {
	for _, group := range groups {
		for _, a := range group {
			if a[0] == '\'' || strings.Contains("-0123456789", a[:1]) || a == "true" || a == "false" {
				continue // a literal is on the right
			}
			for _, b := range group {
				for _, operator := range strings.Fields("= <> < <= > >=") {
					if operator == "=" || operator == "<>" || group[0] != "kind" { // enums do not order
						conditions = append(conditions, a+" "+operator+" "+b)
					}
				}
			}
		}
	}
	return conditions
}

func checkConditions(t *testing.T, run texts, l *list.List, conditions []string) {
	t.Helper()
	var selected []string
	for _, c := range l.Columns[:l.Selected] {
		selected = append(selected, list.Quote(c.Name))
	}
	for _, v := range l.Filters[0].Values {
		run("CREATE INDEX ON nothing (id) WHERE " + v.Keep.String())
		selected = append(selected, "("+v.Keep.String()+") IS TRUE")
	}
	kept := 0
	for _, row := range run("SELECT " + strings.Join(selected, ", ") + " FROM things") {
		values := row[:l.Selected]
		r, err := l.Row(values, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range l.Filters[0].Values {
			want := string(row[l.Selected+i]) == "t"
			if v.Keep.Holds(values) != want || (r.Match&v.Bit != 0) != want {
				t.Fatalf("%s of %q is %t, want %t", conditions[i], values, v.Keep.Holds(values), want)
			}
			if want {
				kept++
			}
		}
	}
	if kept == 0 {
		t.Error("no condition keeps any row")
	}
}
