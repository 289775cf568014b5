package follower_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"listedge/internal/lists"
)

// extremes are values of a kind, in SQL.
func extremes(kind lists.Kind) []string {
	nines := strings.Repeat("9", 1000)
	switch kind {
	case lists.Text:
		return []string{"''", "'\"\\/'", "E'\\x01\\t\\n\\r\\x1f\\x7f'", "U&'\\2028\\2029\\feff'", "'😀 é茶 ß ΟΔΟΣ'", "'e\u0301'", "U&'\\+01fae8'",
			"repeat('x', 7000)", "repeat(chr(1), 2000)", "repeat('é', 32768)"}
	case lists.Decimal, lists.Number:
		return []string{"0", "-0.00", "0.000", "1", "10", "9999", "10000", "100000000", "12.50", "0.0001", "0.00010", "0.00001", "-1234567.8901", "1e20",
			"1e-1000", "-" + nines + "." + nines,
			"1e9000", "1e-9000", "'NaN'", "'Infinity'", "'-Infinity'"}
	case lists.Instant:
		return []string{"'0001-01-01Z'", "'9999-12-31 23:59:59.999Z'", "'1969-12-31 23:59:59.999Z'", "'2024-02-29 12:34:56.789Z'", "'10000-01-01Z'",
			"'4713-01-01Z BC'", "'294276-12-31Z'", "'infinity'", "'-infinity'"}
	case lists.UUID:
		return []string{"'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'0197A1B2-C3D4-7E5F-8A9B-0C1D2E3F4A5B'"}
	}
	return []string{"true", "false"}
}

// A row in the log is, byte by byte, the one that a statement reads; and it says what
// Postgres says.
func TestRowsOfTheLogAreThoseOfStatements(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`DO $$ DECLARE c record; BEGIN FOR c IN SELECT conrelid::regclass r, conname FROM pg_constraint
		WHERE contype = 'c' AND conrelid IN ('items'::regclass, 'contacts'::regclass)
		LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.r, c.conname); END LOOP; END $$`)
	w.awaitFollowing(w.follow())
	for _, c := range lists.All {
		for _, column := range c.Listed() {
			values := extremes(column.Kind)
			if column.Nullable {
				values = append(values, "NULL")
			}
			for _, value := range values {
				t.Run(fmt.Sprintf("%s.%s = %.40s", c, column.Name, value), func(t *testing.T) {
					names, given := "workspace_id, id, name, "+column.Name, "$1, #1, 'a', "+value
					switch column.Name {
					case "id":
						names, given = "workspace_id, name, id", "$1, 'a', "+value
					case "name":
						names, given = "workspace_id, id, name", "$1, #1, "+value
					}
					w.exec(rowsSQL(fmt.Sprintf("BEGIN; DELETE FROM %[1]s; INSERT INTO %[1]s (%[2]s) VALUES (%[3]s); COMMIT", c, names, given)))
					change := w.newChange()
					logged := change.Lists[0].Rows
					read, says := w.read(c)
					if len(read.Text()) > 8<<10 {
						read.ForgetText()
					}
					if is := logged[len(logged)-1]; is != read {
						t.Errorf("%.300v, but a statement reads %.300v", is, read)
					}
					if read.Text() == "" {
						return
					}
					if is := decoded(t, read.Text()); !reflect.DeepEqual(is, decoded(t, says)) {
						t.Errorf("%.300v, but Postgres says %.300s", is, says)
					}
				})
			}
		}
	}
}

// read reads the only row of a table as statements do, and as Postgres shows it.
func (w *world) read(c lists.Collection) (row lists.Row, says string) {
	w.Helper()
	var columns, fields []string
	for _, column := range c.Listed() {
		shown := column.Name
		switch column.Kind {
		case lists.Decimal:
			shown += "::text"
		case lists.Instant:
			shown = "to_char(" + shown + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`
		}
		columns, fields = append(columns, column.Name), append(fields, "'"+column.Field+"', "+shown)
	}
	result := w.db.PgConn().ExecParams(w.ctx(), fmt.Sprintf("SELECT %s FROM %s", strings.Join(columns, ", "), c), nil, nil, nil, []int16{1}).Read()
	must(result.Err)
	row, err := c.Row(result.Rows[0], 0)
	if err != nil && !errors.Is(err, lists.ErrBounds) || (row.Text() == "") != (err != nil) {
		w.Fatalf("%v: %.300v", err, row)
	}
	return row, w.text(fmt.Sprintf("SELECT json_build_object(%s)::text FROM %s", strings.Join(fields, ", "), c))
}

// decoded keeps each digit of numbers.
func decoded(t *testing.T, text string) (fields map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		t.Fatalf("%v: %.300s", err, text)
	}
	return fields
}
