package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	sandboxtest.Certificate(t, "a database", time.Hour, cert, key)
	as := must1(sandbox.ServerAccount())
	if as != nil {
		must(os.Chown(key, int(as.Uid), int(as.Gid)))
	}
	pg := sandboxtest.PostgresWith(t, map[string]string{"ssl": "on", "ssl_cert_file": cert, "ssl_key_file": key})
	return pg, ownDatabase(t, pg) + "?sslmode=verify-ca&sslrootcert=" + cert
}

// An aborted connection is closed by protocol: the server's log, and a pooler's, has
// no connection that was reset.
func TestAnAbortedConnectionClosesCleanly(t *testing.T) {
	t.Parallel()
	pg, url := secured(t)
	conn := connect(t, url)
	for _, mode := range []string{"disable", "verify-ca"} {
		o := openOrigin(t, strings.Replace(url, "sslmode=verify-ca", "sslmode="+mode, 1))
		r := must1(o.pool.Acquire(within(t, patience)))
		pid := r.Conn().PgConn().PID()
		rows := &postgres.Statement{Name: "rows", SQL: "SELECT repeat('x', 1000) FROM generate_series(1, 1000000)",
			Columns: []postgres.Column{{Type: pgtype.TextOID}}}
		ctx, leave := context.WithCancel(t.Context())
		if err := rows.Query(ctx, r.Conn(), nil, func([][]byte) error { leave(); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		r.Release()
		eventually(t, "its end", func() bool { return sessionsWhere(t, conn, fmt.Sprintf("pid = %d", pid)) == 0 })
	}
	log := must1(os.ReadFile(pg.LogFile()))
	if n := bytes.Count(log, []byte("canceling statement due to user request")); n != 2 || bytes.Contains(log, []byte("to client")) {
		t.Errorf("cancelled %d times:\n%s", n, log)
	}
}
