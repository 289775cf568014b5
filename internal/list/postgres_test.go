package list_test

import (
	"cmp"
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

// Positions are in the order of Postgres, and it takes what is read from them.
func TestPositionsSortAsPostgresDoes(t *testing.T) {
	run := database(t)
	run("CREATE EXTENSION citext")
	random := rand.New(rand.NewPCG(3, 4))
	for base, values := range ordered {
		t.Run(base, func(t *testing.T) {
			if base == "numeric" {
				values = slices.DeleteFunc(slices.Clone(numerics), func(v string) bool { return len(v) > 400 })
			}
			values = strings.Split(strings.Join(values, "\n"), "\n")
			run(fmt.Sprintf("CREATE TABLE things_%s (id int2 PRIMARY KEY, v %[1]s NOT NULL)", base))
			insert := fmt.Sprintf("INSERT INTO things_%s VALUES ($1::text::int2, $2::text::%[1]s)", base)
			if base == "bpchar" {
				insert = "INSERT INTO things_bpchar VALUES ($1::text::int2, $2::text::char(9))"
			}
			for i, v := range append(values, values...) {
				run(insert, fmt.Sprint(random.IntN(100)*100+i-5000), v)
			}
			c := list.Column{Name: "v", Type: list.Type{Base: base}}
			by := list.Quote("v")
			if slices.Contains([]string{"text", "bpchar", "citext", "name"}, c.Base) {
				by = `"v"::text COLLATE "C"`
			}
			for direction, descending := range map[string]bool{"": false, " DESC": true} {
				l := described(t, fmt.Sprintf("key: id\nfields: {id: }\norders: {v: {by: v, descending: %t}}", descending), "id int2", "v "+base)
				type at struct {
					row      list.Row
					position list.Position
				}
				var all []at
				for _, values := range run(fmt.Sprintf("SELECT id, v FROM things_%s ORDER BY %s%s, id%[3]s", base, by, direction)) {
					r, err := l.Row(values, nil)
					if err != nil {
						t.Fatal(err)
					}
					p := l.Position(&r, 0)
					value, key, ok := l.ParsePosition(0, p)
					found := run(fmt.Sprintf("SELECT id FROM things_%s WHERE id = $1::text::int2 AND %s = $2::text::%s", base, by,
						strings.Replace(base, "bpchar", "text", 1)), key, value)
					if !ok || len(found) != 1 || l.KeyText(r.Key()) != key {
						t.Fatalf("%q at %q is read as %q %q", values, p, value, key)
					}
					all = append(all, at{r, p})
				}
				if len(all) < 6 || !slices.IsSortedFunc(all, func(a, b at) int { return cmp.Compare(a.position, b.position) }) {
					t.Errorf("%d rows are not in order%s", len(all), direction)
				}
			}
		})
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
		if !errors.Is(err, list.ErrBounds) || !slices.Equal(l.Unshown(row), []string{"the order v"}) {
			t.Errorf("%v: %v", err, l.Unshown(row))
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
