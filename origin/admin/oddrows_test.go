package admin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/origin/apikey"
	"listedge/origin/audit"
)

// oddValues are values, in SQL, that other systems may write to columns of a type.
var oddValues = map[string][]string{
	"timestamp with time zone": {"NULL", "'infinity'", "'-infinity'", "'4713-01-01 BC'", "'294276-12-31'", "'0001-01-01 23:00 -1'", "'10000-01-01Z'"},
	"double precision":         {"NULL", "'NaN'", "'Infinity'", "'-Infinity'", "-1", "1e308", "5e-324"},
	"integer":                  {"NULL", "0", "-2147483648", "2147483647"},
	"bigint":                   {"NULL", "0", "-9223372036854775808", "9223372036854775807"},
	"text":                     {"NULL", "''", "'week'", `E'\x1b[2J\r\n\t'`, `U&'\202E\0085'`, "repeat('é', 524288)"},
	"ARRAY": {"NULL", "'{}'", "'{NULL}'", "'{items:read,NULL}'", "'{{items:read},{contacts:read}}'", "'[5:5]={items:read}'",
		`ARRAY[E'\x1b', '', 'items:write']`},
	"bytea": {"NULL", "uuid_send(gen_random_uuid())"}, // of another length
	"uuid":  nil,                                      // they name rows, and are what they are
}

// oddRow is a row with one odd value.
type oddRow struct {
	what          string
	workspace, id uuid.UUID // the id is the workspace's or the key's
}

// oddRows makes a row for each odd value of each column that a table has, each in a workspace of
// its own. Its constraints are dropped: tables that others made before the schema may lack them.
func oddRows(t *testing.T, c *Conn, table string) (rows []oddRow) {
	t.Helper()
	columns := must1(all[struct{ Name, Type string }](t.Context(), c.conn, "read the catalog",
		`SELECT column_name::text AS name, data_type::text AS type FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1`, table))
	constraints := must1(all[struct{ Name string }](t.Context(), c.conn, "read the catalog",
		`SELECT quote_ident(conname) AS name FROM pg_constraint WHERE conrelid = $1::text::regclass AND contype = 'c'`, table))
	for _, k := range constraints {
		exec(t, c.conn, "ALTER TABLE "+table+" DROP CONSTRAINT "+k.Name)
	}
	exec(t, c.conn, "DROP INDEX IF EXISTS listedge_workspaces_by_tenant") // which would refuse a long tenant
	for _, column := range columns {
		values, known := oddValues[column.Type]
		if !known {
			t.Fatalf("%s.%s: what values may a %s have?", table, column.Name, column.Type)
		}
		if len(values) > 0 {
			exec(t, c.conn, "ALTER TABLE "+table+" ALTER COLUMN "+column.Name+" DROP NOT NULL")
		}
		for _, value := range values {
			w := must1(c.CreateWorkspace(t.Context(), "W", new(5.0), nil, &apikey.Quota{Requests: 9, Period: apikey.Day}, ""))
			row := oddRow{table + "." + column.Name + " = " + value, w.ID, w.ID}
			if table == "api_keys" {
				row.id = must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID, Name: "K"}, new(time.Hour))).ID
			}
			exec(t, c.conn, "UPDATE "+table+" SET "+column.Name+" = "+value+" WHERE id = $1", row.id)
			rows = append(rows, row)
		}
	}
	return rows
}

// shows fails if a call fails or what it returns cannot be shown.
func shows[T any](t *testing.T, v T, err error) {
	t.Helper()
	if err == nil {
		_, err = json.Marshal(v)
	}
	if err != nil {
		t.Error(err)
	}
}

// Other systems write workspaces and api_keys. Whatever they write, keys and workspaces are
// listed, keys are revoked and workspaces suspended.
func TestOddValuesOfOtherSystems(t *testing.T) {
	t.Parallel()
	c := openAdmin(t, newDatabase(t))
	ctx := t.Context()
	now := func(sql string, id uuid.UUID) (is bool) {
		must(c.conn.QueryRow(ctx, sql, id).Scan(&is))
		return is
	}
	keys := func(do func(t *testing.T, row oddRow)) func(t *testing.T) {
		return func(t *testing.T) {
			for _, row := range oddRows(t, c, "api_keys") {
				t.Run(row.what, func(t *testing.T) { do(t, row) })
			}
		}
	}
	t.Run("keys", keys(func(t *testing.T, row oddRow) {
		k, err := c.Key(ctx, row.id)
		shows(t, k, err)
		list, err := c.Keys(ctx, row.workspace, nil)
		shows(t, list, err)
		if len(list) != 1 {
			t.Errorf("%d keys", len(list))
		}
		list, err = c.Keys(ctx, row.workspace, new(time.Hour))
		shows(t, list, err)
		u, err := c.Usage(ctx, row.workspace, time.Hour)
		shows(t, u, err)
		if k.State == KeyActive {
			k, err = c.UpdateKey(ctx, row.id, new(3.0), new(int32(4)))
			shows(t, k, err)
		}
	}))
	t.Run("rotate", keys(func(t *testing.T, row oddRow) {
		k := must1(c.Key(ctx, row.id))
		r, err := c.RotateKey(ctx, row.id, time.Hour, nil)
		if k.State != KeyActive { // which the test for rotations has
			return
		}
		shows(t, r, err)
	}))
	t.Run("revoke", keys(func(t *testing.T, row oddRow) {
		k, err := c.RevokeKey(ctx, row.id)
		shows(t, k, err)
		if k.State != KeyRevoked || !now(`SELECT revoked_at <= now() FROM api_keys WHERE id = $1`, row.id) {
			t.Errorf("%+v", k)
		}
	}))
	for _, row := range oddRows(t, c, "workspaces") {
		t.Run(row.what, func(t *testing.T) {
			list, err := c.Workspaces(ctx)
			shows(t, list, err)
			u, err := c.Usage(ctx, row.id, time.Hour)
			shows(t, u, err)
			w, err := c.SuspendWorkspace(ctx, row.id)
			shows(t, w, err)
			if !now(`SELECT suspended_at <= now() FROM workspaces WHERE id = $1`, row.id) {
				t.Error("it is not suspended")
			}
			w, err = c.UpdateWorkspace(ctx, row.id, new(3.0), new(int32(4)), nil, "")
			shows(t, w, err)
			w, err = c.ResumeWorkspace(ctx, row.id)
			shows(t, w, err)
		})
	}
	log, err := c.Audit(ctx, audit.Filter{Limit: 10_000})
	shows(t, log, err)
}

// That a row cannot be shown does not keep it from being changed: the change is committed, and
// the error says so.
func TestAnActIsDoneBeforeItIsShown(t *testing.T) {
	t.Parallel()
	c, _, k := acting(t)
	exec(t, c.conn, `DROP TABLE listedge_key_last_used`) // which the list of keys reads
	_, err := c.RevokeKey(t.Context(), k.ID)
	var revoked bool
	must(c.conn.QueryRow(t.Context(), `SELECT revoked_at IS NOT NULL FROM api_keys WHERE id = $1`, k.ID).Scan(&revoked))
	if err == nil || !revoked {
		t.Errorf("revoked: %t: %v", revoked, err)
	}
	if e := newest(t, c); e.Action != "keys.revoke" || fmt.Sprint(e.KeyID) != k.ID.String() {
		t.Errorf("%+v", e)
	}
}

// Behind whatever settings a database has, commands read what they write.
func TestSettingsOfADatabaseChangeNoCommand(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	first := openAdmin(t, url)
	for _, setting := range []string{"datestyle = 'German'", "intervalstyle = 'sql_standard'", "bytea_output = 'escape'", "extra_float_digits = -10",
		"timezone = 'Asia/Kolkata'", "standard_conforming_strings = off", "lc_numeric = 'C'", "quote_all_identifiers = on", "array_nulls = off"} {
		exec(t, first.conn, "ALTER DATABASE "+first.conn.Config().Database+" SET "+setting)
	}
	c := openAdmin(t, url)
	rate := 0.1
	w := must1(c.CreateWorkspace(t.Context(), "W", &rate, nil, nil, ""))
	k := must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil))
	must1(c.RevokeKey(t.Context(), k.ID))
	keys := must1(c.Keys(t.Context(), w.ID, nil))
	if all := must1(c.Workspaces(t.Context())); len(all) != 1 || *all[0].RatePerSecond != rate || len(keys) != 1 ||
		time.Since(*keys[0].CreatedAt).Abs() > time.Hour {
		t.Errorf("%+v %+v", all, keys)
	}
	must1(c.Audit(t.Context(), audit.Filter{Limit: 10}))
}

// Where a table or a column is missing, commands say what to do.
func TestCommandsWithoutASchema(t *testing.T) {
	t.Parallel()
	c, id := openAdmin(t, emptyDatabase(t)), uuid.New()
	ctx := t.Context()
	for name, run := range map[string]func() error{
		"workspaces create":  func() error { _, err := c.CreateWorkspace(ctx, "W", nil, nil, nil, ""); return err },
		"workspaces list":    func() error { _, err := c.Workspaces(ctx); return err },
		"workspaces suspend": func() error { _, err := c.SuspendWorkspace(ctx, id); return err },
		"keys create":        func() error { _, err := c.CreateKey(ctx, Key{WorkspaceID: id}, nil); return err },
		"keys list":          func() error { _, err := c.Keys(ctx, id, nil); return err },
		"keys list unused":   func() error { _, err := c.UsageSince(ctx); return err },
		"keys rotate":        func() error { _, err := c.RotateKey(ctx, id, 0, nil); return err },
		"usage":              func() error { _, err := c.Usage(ctx, id, time.Hour); return err },
		"audit":              func() error { _, err := c.Audit(ctx, audit.Filter{Limit: 1}); return err },
	} {
		if err := run(); err == nil || !strings.Contains(err.Error(), ": run `listedge migrate up`;") || strings.Count(err.Error(), "run `") != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
