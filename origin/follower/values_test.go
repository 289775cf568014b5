package follower_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/origin/postgres"
)

// everything has a column of each type that lists know, and is in order by each that may order.
const everything = `
	CREATE EXTENSION citext;
	CREATE SCHEMA "every Thing";
	CREATE TYPE "every Thing"."Kind" AS ENUM ('plain', 'with "quotes"', 'é');
	CREATE DOMAIN "every Thing".short AS varchar(40) CHECK (value <> 'never');
	CREATE DOMAIN "every Thing".shorter AS "every Thing".short;
	CREATE DOMAIN "every Thing".kinds AS "every Thing"."Kind";
	CREATE TABLE "every Thing"."All" (id bigint, "of" uuid NOT NULL,
		text text, varchar varchar, bound varchar(40), fixed char(5), citext citext, name name, kind "every Thing"."Kind", uuid uuid,
		int2 int2, int4 int4, int8 int8, float4 float4, float8 float8, "numeric" numeric, money numeric(12, 2), bool bool,
		timestamptz timestamptz, milli timestamptz(3), second timestamptz(0), "timestamp" timestamp, deci timestamp(1), date date,
		json json, jsonb jsonb, short "every Thing".shorter, kinds "every Thing".kinds,
		"byText" text COLLATE "C" NOT NULL DEFAULT '', "byFold" text NOT NULL DEFAULT '', by_int int2 NOT NULL DEFAULT 0, by_long int8 NOT NULL DEFAULT 0,
		by_numeric numeric NOT NULL DEFAULT 0, by_instant timestamptz NOT NULL DEFAULT '2020-01-01Z', by_timestamp timestamp NOT NULL DEFAULT '2020-01-01',
		by_date date NOT NULL DEFAULT '2020-01-01', PRIMARY KEY ("of", id));
	ALTER PUBLICATION listedge ADD TABLE "every Thing"."All"`

const everythingLists = `
lists:
  everything:
    table: every Thing.All
    tenant: of
    key: id
    fields: {id: , text: , varchar: , bound: , fixed: , citext: , name: , kind: , uuid: , int2: , int4: , int8: , float4: , float8: , numeric: , money: ,
      amount: {column: by_numeric, as: number}, bool: , timestamptz: , milli: , second: , timestamp: , deci: , date: , json: , jsonb: , short: , kinds: }
    orders:
      text: {by: byText}
      fold: {by: byFold, fold: true}
      int: {by: by_int, descending: true}
      long: {by: by_long}
      numeric: {by: by_numeric}
      instant: {by: by_instant, descending: true}
      timestamp: {by: by_timestamp}
      date: {by: by_date}
`

// extremes are values of a type, in SQL.
func extremes(t list.Type) []string {
	nines := strings.Repeat("9", 1000)
	switch t.Base {
	case "text", "citext":
		return []string{"''", "'\"\\/'", "E'\\x01\\t\\n\\r\\x1f\\x7f'", "U&'\\2028\\2029\\feff'", "'😀 é茶 ß ΟΔΟΣ'", "'e\u0301'", "U&'\\+01fae8'",
			"repeat('x', 7000)", "repeat(chr(1), 2000)", "repeat('é', 32768)"}
	case "varchar":
		return []string{"''", "'a  '", "repeat('é', 40)"}
	case "bpchar":
		return []string{"''", "'a'", "'a b '", "'ééééé'"}
	case "name":
		return []string{"''", "repeat('é', 31)"}
	case "uuid":
		return []string{"'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'0197A1B2-C3D4-7E5F-8A9B-0C1D2E3F4A5B'"}
	case "int2":
		return []string{"-32768", "-1", "0", "32767"}
	case "int4":
		return []string{"-2147483648", "0", "2147483647"}
	case "int8":
		return []string{"-9223372036854775808", "0", "9007199254740993", "9223372036854775807"}
	case "float4":
		return []string{"-0.0", "0.1", "1e-45", "3.4028235e38", "16777217", "'NaN'", "'Infinity'", "'-Infinity'"}
	case "float8":
		return []string{"'-0'", "0.1::float8 + 0.2::float8", "5e-324", "1.7976931348623157e308", "1e15", "123456789012345678", "'NaN'", "'Infinity'", "'-Infinity'"}
	case "numeric":
		if t.Mod >= 0 {
			return []string{"0", "12.5", "-9999999999.99", "'NaN'"}
		}
		return []string{"0", "-0.00", "0.000", "1", "10", "9999", "10000", "100000000", "12.50", "0.0001", "0.00010", "0.00001", "-1234567.8901", "1e20",
			"1e-1000", "-" + nines + "." + nines, "1e9000", "1e-9000", "'NaN'", "'Infinity'", "'-Infinity'"}
	case "bool":
		return []string{"true", "false"}
	case "timestamptz", "timestamp":
		return []string{"'0001-01-01Z'", "'9999-12-31 23:59:59.999999Z'", "'1969-12-31 23:59:59.999Z'",
			"'2024-02-29 12:34:56.789+05:30'", "'2024-02-29 12:34:56.000001Z'",
			"'10000-01-01Z'", "'4713-01-01Z BC'", "'294276-12-31Z'", "'infinity'", "'-infinity'"}
	case "date":
		return []string{"'0001-01-01'", "'2024-02-29'", "'9999-12-31'", "'10000-01-01'", "'0044-03-15 BC'", "'5874897-12-31'", "'infinity'", "'-infinity'"}
	case "json", "jsonb":
		return []string{"'null'", "'0'", "'-1.50e3'", `'"\u00e9 \" \\ , }"'`, `' { "b" : [1, 2.50, {}], "a": "é\n" , "a": null } '`, "'[]'", "U&'\"\\2028\\2029\"'",
			`('"' || repeat('x', 6000) || '"')::` + t.Base}
	}
	var labels []string
	for _, label := range t.Labels {
		labels = append(labels, "'"+label+"'")
	}
	return labels
}

// A row in the log is, byte by byte, the one that a statement reads, whatever the settings of databases and roles are.
func TestRowsOfTheLogAreThoseOfStatements(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("lists of their own: %t", own), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			if own {
				w.exec(everything)
				w.describe(everythingLists)
			}
			w.exec(`DO $$ DECLARE c record; BEGIN FOR c IN SELECT conrelid::regclass r, conname FROM pg_constraint
				WHERE contype = 'c' AND conrelid IN ('items'::regclass, 'contacts'::regclass)
				LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.r, c.conname); END LOOP; END $$`)
			for setting, value := range map[string]string{"datestyle": "SQL, DMY", "timezone": "Asia/Kolkata", "intervalstyle": "iso_8601",
				"extra_float_digits": "-15", "bytea_output": "escape", "client_encoding": "LATIN1"} {
				w.exec(fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'; ALTER ROLE CURRENT_USER IN DATABASE %[1]s SET %[2]s = '%[3]s'", w.name, setting, value))
			}
			reader, err := postgres.Connect(w.ctx(), w.url, patience)
			must(err)
			defer reader.Close(w.ctx())
			w.awaitFollowing(w.follow())
			for _, l := range w.lists.Lists {
				for _, column := range l.Columns[:l.Selected] {
					values := extremes(column.Type)
					if !column.NotNull {
						values = append(values, "NULL")
					}
					for _, value := range values {
						t.Run(fmt.Sprintf("%s.%s = %.40s", l.Name, column.Name, value), func(t *testing.T) { w.compare(t, reader, l, column, value) })
					}
				}
			}
		})
	}
}

// compare writes a row with the value, and compares what the log and the reader say of it.
func (w *world) compare(t *testing.T, reader *pgx.Conn, l *list.List, column list.Column, value string) {
	t.Helper()
	given := map[string]string{}
	for _, c := range l.Columns {
		if c.NotNull {
			given[c.Name] = ordinary(c)
		}
	}
	given[column.Name] = value
	var columns, names, values []string
	for name, value := range given {
		names, values = append(names, list.Quote(name)), append(values, value)
	}
	w.exec(fmt.Sprintf("BEGIN; DELETE FROM %[1]s; INSERT INTO %[1]s (%[2]s) VALUES (%[3]s); COMMIT",
		l.Table.SQL(), strings.Join(names, ", "), strings.Join(values, ", ")))
	change := w.newChange()
	for _, c := range l.Columns[:l.Selected] {
		columns = append(columns, list.Quote(c.Name))
	}
	result := reader.PgConn().ExecParams(w.ctx(), "SELECT "+strings.Join(columns, ", ")+" FROM "+l.Table.SQL(), nil, nil, nil, nil).Read()
	must(result.Err)
	read, err := l.Row(result.Rows[0], nil)
	if err != nil && !errors.Is(err, list.ErrBounds) {
		t.Fatalf("%v: %.300q", err, result.Rows[0])
	}
	if read.TextSize() > 8<<10 {
		read.ForgetText()
	}
	rows := change.Touched[0].Rows
	if len(rows) == 0 || rows[len(rows)-1] != read {
		t.Errorf("%.200s (%d rows), but a statement reads %.200q", named(change), len(rows), read.Text())
	}
	if read.Text() != "" && !json.Valid([]byte(read.Text())) {
		t.Errorf("no JSON: %.300s", read.Text())
	}
}

// ordinary is a value of a column that is not NULL, in SQL.
func ordinary(c list.Column) string {
	switch {
	case c.Base == "uuid":
		return "'" + listtest.ID(7) + "'"
	case c.Base == "text":
		return "'GOODS'"
	case c.Base == "bool":
		return "true"
	case c.Base == "date", strings.HasPrefix(c.Base, "timestamp"):
		return "'2020-01-01'"
	}
	return "7"
}
