package origin

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/list"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/origin/admin"
	"listedge/origin/postgres"
)

// ownDatabase makes the schema on a server of its own.
func ownDatabase(t testing.TB, pg *sandbox.Postgres) string {
	t.Helper()
	must(postgrestest.Make(within(t, patience), pg, "listedge", admin.MigrateUp))
	return pg.URL("listedge")
}

// sessionsWhere counts the Origin's sessions at the server.
func sessionsWhere(t testing.TB, conn *pgx.Conn, condition string) (n int) {
	t.Helper()
	must(conn.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'listedge' AND "+
		condition).Scan(&n))
	return n
}

// atRest says whether all connections of pages are in the pool, none at work,
// and the server knows of no others. (One that it ended itself it knows no more,
// the pool still does.)
func atRest(t testing.TB, o *Origin, db *postgres.Database, conn *pgx.Conn) bool {
	t.Helper()
	s := o.Stats()
	return s.Running == 0 && s.Queued == 0 && s.Pool.IdleConns() == s.Pool.TotalConns() && sessionsWhere(t, conn, "state <> 'idle'") == 0 &&
		sessionsWhere(t, conn, "true") <= int(s.Pool.TotalConns()+db.Keys.Pool.Stat().TotalConns())
}

// The server's error after rows is an error, and no short answer; the connection is as good as
// before.
func TestAnErrorAfterRowsIsNoAnswer(t *testing.T) {
	t.Parallel()
	o := New(openDatabase(t, postgres.Options{URL: newDatabase(t), Connections: 1}), list.BuiltIn(), nil)
	rows := &postgres.Statement{Name: "rows", SQL: "SELECT (1 / (1000 - n))::text || repeat('x', 1000) FROM generate_series(1, 2000) n",
		Columns: []postgres.Column{{Type: pgtype.TextOID}}}
	for range 2 {
		conn, n := must1(o.pool.Acquire(within(t, patience))), 0
		err := rows.Query(t.Context(), conn.Conn(), nil, func([][]byte) error { n++; return nil })
		conn.Release()
		if n != 999 || postgres.Code(err) != "22012" { // division_by_zero
			t.Errorf("%d rows, %v", n, err)
		}
		must1(o.Fetch(within(t, patience), anyPage, ""))
	}
	if n := o.pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were needed", n)
	}
}

// A server, or a pooler before it, forgets a connection's statements. They are
// prepared again.
func TestForgottenStatementsArePreparedAgain(t *testing.T) {
	t.Parallel()
	o := New(openDatabase(t, postgres.Options{URL: newDatabase(t), Connections: 1}), list.BuiltIn(), nil)
	for range 3 {
		must1(o.Fetch(within(t, patience), anyPage, ""))
		must1(o.pool.Exec(t.Context(), "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol))
	}
	if n := o.pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were needed", n)
	}
}
