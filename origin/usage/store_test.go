package usage_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/postgres"
	"listedge/origin/postgres/databasetest"
	"listedge/origin/usage"
)

var shared = postgrestest.Shared{Settings: postgrestest.Fast, Prepare: postgrestest.Prepare(admin.MigrateUp)}

func TestMain(m *testing.M) { shared.Main(m) }

// patience is a limit for what a test waits for.
const patience = 5 * time.Minute

func openStore(t testing.TB, url string) *usage.Store {
	t.Helper()
	return usage.NewStore(databasetest.Open(t, postgres.Options{URL: url}))
}

// hour begins at 10:00. It is not old enough to be removed.
var hour = time.Now().UTC().Truncate(24 * time.Hour).Add(10 * time.Hour)

// used is a row of the hour in which every number is n.
func used(k usage.Key, hour time.Time, n uint64) *usage.Row {
	return &usage.Row{Key: k, Hour: hour, Counts: usage.Counts{Requests: n, Refused: n, NotModified: n, Bypassed: n, Bytes: n, Queries: n},
		LastUsed: hour.Add(time.Duration(n) * time.Second)}
}

// sums returns the rows of a table as text, in order.
func sums(t *testing.T, url, sql string) string {
	t.Helper()
	var text *string
	if err := postgrestest.Connect(t, url).QueryRow(postgrestest.Within(t, patience), sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	if text == nil {
		return ""
	}
	return *text
}

const (
	hoursSQL = `SELECT string_agg(concat_ws(' ', extract(hour FROM hour AT TIME ZONE 'UTC'), get_byte(uuid_send(key_id), 1), requests, refused,
		not_modified, bypassed, bytes, queries), ', ' ORDER BY hour, key_id) FROM listedge_key_usage`
	usedSQL = `SELECT string_agg(concat_ws(' ', get_byte(uuid_send(key_id), 1), to_char(last_used_at AT TIME ZONE 'UTC', 'HH24:MI:SS')),
		', ' ORDER BY key_id) FROM listedge_key_last_used`
)

func write(t *testing.T, s *usage.Store, run uuid.UUID, number int64, rows ...*usage.Row) {
	t.Helper()
	if err := s.Add(postgrestest.Within(t, patience), run, number, rows); err != nil {
		t.Fatal(err)
	}
}

func TestABatchCountsOnce(t *testing.T) {
	t.Parallel()
	url := shared.New(t)
	s, run := openStore(t, url), uuid.New()
	first := []*usage.Row{used(key(1, 1), hour, 3), used(key(1, 1), hour.Add(time.Hour), 4), used(key(1, 2), hour, 2), used(key(1, 2), hour, 3)}
	write(t, s, run, 1, first...)
	write(t, s, run, 1, first...) // its answer was lost
	write(t, s, run, 2, used(key(1, 1), hour, 10))
	write(t, s, run, 1, first...)
	write(t, s, uuid.New(), 1, used(key(1, 2), hour, 1))
	if got, want := sums(t, url, hoursSQL), "10 1 13 13 13 13 13 13, 10 2 6 6 6 6 6 6, 11 1 4 4 4 4 4 4"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := sums(t, url, usedSQL), "1 11:00:04, 2 10:00:03"; got != want { // never earlier than before
		t.Errorf("%s, want %s", got, want)
	}
}

// The first statement may still run when the batch is sent again.
func TestABatchThatStillRunsCountsOnce(t *testing.T) {
	t.Parallel()
	url := shared.New(t)
	s, run := openStore(t, url), uuid.New()
	write(t, s, run, 1, used(key(1, 1), hour, 1))
	holder := postgrestest.Connect(t, url)
	postgrestest.ExecOn(t, holder, "BEGIN; UPDATE listedge_key_usage SET requests = requests")
	var writes sync.WaitGroup
	for range 2 {
		other := openStore(t, url)
		writes.Go(func() { write(t, other, run, 2, used(key(1, 1), hour, 1)) })
	}
	watcher := postgrestest.Connect(t, url)
	sandboxtest.Within(t, patience, "both wait", func() bool {
		var waiting int
		err := watcher.QueryRow(context.Background(), `SELECT count(DISTINCT pid) FROM pg_locks
			WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&waiting)
		return err == nil && waiting == 2
	})
	postgrestest.ExecOn(t, holder, "COMMIT")
	writes.Wait()
	if got, want := sums(t, url, hoursSQL), "10 1 2 2 2 2 2 2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A sum does not overflow, and other rows of the batch are written.
func TestARowAtItsBoundStaysThere(t *testing.T) {
	t.Parallel()
	url := shared.New(t)
	s, run := openStore(t, url), uuid.New()
	write(t, s, run, 1, used(key(1, 1), hour, 1))
	postgrestest.Exec(t, url, "UPDATE listedge_key_usage SET bytes = 9223372036854775806")
	write(t, s, run, 2, used(key(1, 1), hour, 3), used(key(1, 2), hour, 1))
	if got, want := sums(t, url, hoursSQL), "10 1 4 4 4 4 9223372036854775807 4, 10 2 1 1 1 1 1 1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Two nodes write the same keys at once.
func TestTwoNodesAddUp(t *testing.T) {
	t.Parallel()
	const nodes, batches, keys = 2, 20, 500
	url := shared.New(t)
	var all sync.WaitGroup
	for range nodes {
		s, run := openStore(t, url), uuid.New()
		all.Go(func() {
			for number := range int64(batches) {
				var rows []*usage.Row
				for i := range keys {
					rows = append(rows, used(key(i%3, i), hour, 1))
				}
				write(t, s, run, number+1, rows...)
			}
		})
	}
	all.Wait()
	if got := sums(t, url, "SELECT concat_ws(' ', count(*), sum(requests), min(bytes), max(queries)) FROM listedge_key_usage"); got != "500 20000 40 40" {
		t.Error(got)
	}
}

func TestOldRowsAreRemoved(t *testing.T) {
	t.Parallel()
	url := shared.New(t)
	postgrestest.Exec(t, url, `WITH w AS (INSERT INTO workspaces (name) VALUES ('w') RETURNING id)
		INSERT INTO api_keys (workspace_id, key_hash, key_prefix, scopes) SELECT id, sha256('k'), 'lk_', '{}' FROM w`)
	postgrestest.Exec(t, url, `INSERT INTO listedge_key_usage
		SELECT gen_random_uuid(), date_trunc('hour', now()) - n * interval '1 hour', gen_random_uuid(), 1, 0, 0, 0, 0, 0 FROM generate_series(0, 35 * 24 + 1499) n`)
	postgrestest.Exec(t, url, `INSERT INTO listedge_key_last_used SELECT id, now() - interval '100 days' FROM api_keys`)
	postgrestest.Exec(t, url, `INSERT INTO listedge_key_last_used VALUES (gen_random_uuid(), now() - interval '100 days'), (gen_random_uuid(), now() - interval '1 day')`)
	postgrestest.Exec(t, url, `UPDATE listedge_usage_writers SET written_at = now() - interval '100 days'`)
	postgrestest.Exec(t, url, `INSERT INTO listedge_usage_writers VALUES (gen_random_uuid(), 1, now() - interval '100 days'), (gen_random_uuid(), 1, now())`)
	s, run := openStore(t, url), uuid.New()
	old := func() string {
		return sums(t, url, "SELECT count(*)::text FROM listedge_key_usage WHERE hour < now() - interval '35 days'")
	}
	for n, want := range []string{"500", "0"} { // a thousand at once
		write(t, s, run, int64(n+1), used(key(1, 1), time.Now(), 1))
		if got := old(); got != want {
			t.Errorf("after %d writes: %s, want %s", n+1, got, want)
		}
	}
	for sql, want := range map[string]string{
		"SELECT concat(count(*) >= 35 * 24) FROM listedge_key_usage":                                                                  "t",
		"SELECT concat(count(*), ' ', count(*) FILTER (WHERE last_used_at < now() - interval '99 days')) FROM listedge_key_last_used": "3 1", // a key that exists
		"SELECT concat(count(*), ' ', min(batch)) FROM listedge_usage_writers":                                                        "3 0",
	} {
		if got := sums(t, url, sql); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
	postgrestest.Exec(t, url, `INSERT INTO listedge_key_usage VALUES (gen_random_uuid(), '2020-01-01Z', gen_random_uuid(), 1, 0, 0, 0, 0, 0)`)
	write(t, s, run, 3, used(key(1, 1), time.Now(), 1))
	if got := old(); got != "1" {
		t.Errorf("looked again within the hour: %s", got)
	}
}

func TestWhatCannotBeWritten(t *testing.T) {
	t.Parallel()
	_, reader := postgrestest.Role(t, shared.New(t), "GRANT SELECT ON ALL TABLES IN SCHEMA public TO $ROLE")
	for name, c := range map[string]struct{ url, want string }{
		"a role that may only read": {reader, "permission denied"},
		"no server":                 {"postgres://127.0.0.1:1/none", "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := openStore(t, c.url).Add(postgrestest.Within(t, patience), uuid.New(), 1, []*usage.Row{used(key(1, 1), hour, 1)})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

func TestAStandbyIsNotWrittenTo(t *testing.T) {
	t.Parallel()
	primary := sandboxtest.Postgres(t)
	if err := postgrestest.Make(t.Context(), primary, "listedge", admin.MigrateUp); err != nil {
		t.Fatal(err)
	}
	standby := sandboxtest.Standby(t, primary, nil)
	s, run, row := openStore(t, standby.URL("listedge")), uuid.New(), used(key(1, 1), hour, 1)
	if err := s.Add(postgrestest.Within(t, patience), run, 1, []*usage.Row{row}); !errors.Is(err, postgres.ErrWrongServer) {
		t.Errorf("%v", err)
	}
	postgrestest.Exec(t, standby.URL("postgres"), "SELECT pg_promote(true)")
	write(t, s, run, 1, row)
}

// Roles of managed servers may be read-only by default, and have settings of their own.
func TestSettingsOfTheRoleHaveNoEffect(t *testing.T) {
	t.Parallel()
	address := shared.New(t)
	_, odd := postgrestest.Role(t, address, `ALTER ROLE $ROLE SUPERUSER; ALTER ROLE $ROLE SET default_transaction_read_only = on; ALTER ROLE $ROLE SET search_path = nowhere;
		ALTER ROLE $ROLE SET row_security = on; ALTER ROLE $ROLE SET default_transaction_isolation = 'serializable'`)
	write(t, openStore(t, odd), uuid.New(), 1, used(key(1, 1), hour, 1))
	_, pooled := sandboxtest.PgBouncer(t, odd, map[string]string{"pool_mode": "transaction"})
	write(t, openStore(t, pooled), uuid.New(), 1, used(key(1, 1), hour, 1))
	if got, want := sums(t, address, hoursSQL), "10 1 2 2 2 2 2 2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
