package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/postgres"
)

// secured starts a server that speaks TLS, and returns its database's URL, by
// which nothing else is spoken.
func secured(t testing.TB) (*sandbox.Postgres, string) {
	t.Helper()
	dir := sandboxtest.Dir(t)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	sandboxtest.Certificate(t, "a database", cert, key)
	as := must1(sandbox.ServerAccount())
	if as != nil {
		must(os.Chown(key, int(as.Uid), int(as.Gid)))
	}
	pg := sandboxtest.PostgresWith(t, map[string]string{"ssl": "on", "ssl_cert_file": cert, "ssl_key_file": key})
	return pg, ownDatabase(t, pg) + "?sslmode=verify-ca&sslrootcert=" + cert
}

// Over TLS all is as without.
func TestPagesComeOverTLS(t *testing.T) {
	t.Parallel()
	_, url := secured(t)
	conn, r, db, o := longWay(t, url, func() int { return 1 + rand.IntN(whole()) }, postgres.Options{Connections: 1, QueryTimeout: 10 * patience})
	fetchWhole := func() {
		t.Helper()
		page := must1(o.Fetch(within(t, patience), longPage, ""))
		checkLongPage(t, page)
	}
	fetchWhole()
	var encrypted bool
	if err := o.pool.QueryRow(t.Context(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted); err != nil || !encrypted {
		t.Fatalf("encrypted: %v, %v", encrypted, err)
	}
	fetchWhole()
	for _, arrived := range []int{3, 20_000, 1_000_000} { // the first in the head of a record
		ctx, leave := context.WithCancel(t.Context())
		answer := fetchHeld(t, ctx, o, r, arrived)
		leave()
		if err := <-answer; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrTimeout) {
			t.Errorf("%v", err)
		}
		r.free()
		fetchWhole()
	}
	release := lockItems(t, url)
	ctx, leave := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	go func() { _, err := o.Fetch(ctx, anyPage, ""); answer <- err }()
	eventually(t, "a query that waits for the lock", func() bool { return sessionsWhere(t, conn, "wait_event_type = 'Lock'") == 1 })
	leave()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	eventually(t, "its end", func() bool { return sessionsWhere(t, conn, "wait_event_type = 'Lock'") == 0 })
	release()
	fetchWhole()
	eventually(t, "rest", func() bool { return atRest(t, o, db, conn) })
}

// An aborted connection is closed by protocol: the server's log, and a pooler's, has
// no connection that was reset.
func TestAnAbortedConnectionClosesCleanly(t *testing.T) {
	t.Parallel()
	pg, url := secured(t)
	conn := connect(t, url)
	for _, mode := range []string{"disable", "verify-ca"} {
		o := openOrigin(t, strings.Replace(url, "sslmode=verify-ca", "sslmode="+mode, 1))
		r := must1(o.open(within(t, patience), &o.upstream))
		pid := r.conn.Conn().PgConn().PID()
		rows := &postgres.Statement{Name: "rows", SQL: "SELECT repeat('x', 1000) FROM generate_series(1, 1000000)", Columns: []postgres.Column{{Type: pgtype.TextOID}}, Formats: []int16{0}}
		ctx, leave := context.WithCancel(t.Context())
		if err := rows.Query(ctx, r.conn.Conn(), nil, func([][]byte) error { leave(); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		o.close(r)
		eventually(t, "its end", func() bool { return sessionsWhere(t, conn, fmt.Sprintf("pid = %d", pid)) == 0 })
	}
	log := must1(os.ReadFile(pg.LogFile()))
	if n := bytes.Count(log, []byte("canceling statement due to user request")); n != 2 || bytes.Contains(log, []byte("to client")) {
		t.Errorf("cancelled %d times:\n%s", n, log)
	}
}
