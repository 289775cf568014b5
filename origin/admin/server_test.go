package admin

import (
	"fmt"
	"strings"
	"testing"

	"listedge/origin/postgres"
)

func TestServersThatCannotHaveTheSchema(t *testing.T) {
	for _, c := range []struct {
		number            int
		version, encoding string
		want              string
	}{
		{150000, "15.0", "UTF8", ""}, {150014, "15.14", "UTF8", ""}, {180001, "18.1", "UTF8", ""},
		{140023, "14.23", "LATIN1", "Postgres 14.23 is too old: use Postgres 15 or later"},
		{150014, "15.14", "LATIN1", "the database's encoding is LATIN1, which cannot hold every name: make a database with ENCODING 'UTF8'"},
		{150014, "15.14", "SQL_ASCII", "the database's encoding is SQL_ASCII, which cannot hold every name: make a database with ENCODING 'UTF8'"},
	} {
		got := ""
		if err := judgeServer(c.number, c.version, c.encoding); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.version, c.encoding, got, c.want)
		}
	}
}

// A database of another encoding is refused before anything is done, and
// migrate and a node say the same of it.
func TestADatabaseOfAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			name := "other_" + strings.ToLower(encoding)
			execOn(t, postgresServer().URL("postgres"), fmt.Sprintf("CREATE DATABASE %s ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", name, encoding))
			t.Cleanup(func() { execOn(t, postgresServer().URL("postgres"), "DROP DATABASE "+name+" WITH (FORCE)") })
			url := postgresServer().URL(name)
			want := "the database's encoding is " + encoding + ", which cannot hold every name: make a database with ENCODING 'UTF8'"
			if applied, err := MigrateUp(t.Context(), url); err == nil || !strings.HasSuffix(err.Error(), want) || len(applied) != 0 {
				t.Errorf("migrate up: %v, applied %v", err, applied)
			}
			if _, err := MigrateStatus(t.Context(), url); err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("migrate status: %v", err)
			}
			var tables int
			const sql = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
			if err := connect(t, url).QueryRow(t.Context(), sql).Scan(&tables); err != nil || tables != 0 {
				t.Errorf("%d tables, %v", tables, err)
			}
			if err := readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context()); err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("ready: %v", err)
			}
		})
	}
}
