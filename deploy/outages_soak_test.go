//go:build soak

package deploy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/sandbox/sandboxtest"
)

const withoutPostgres = "OriginBreakerOpen NoFollower FreshnessUntrusted"

// TestSoakOutages plays the outages for which `make test` has no time.
func TestSoakOutages(t *testing.T) {
	f := startServers(t)
	toPostgres := sandboxtest.StartRelay(t, f.postgres.Addr())
	f.env = append(f.env, "LISTEDGE_DATABASE_URL="+strings.Replace(f.postgres.URL("postgres"), f.postgres.Addr(), toPostgres.Addr(), 1))
	for range 3 {
		f.add(t)
	}
	f.startHAProxy(t)
	toRedis := func(command string) func(*testing.T) {
		return func(*testing.T) {
			conn := must1(net.Dial("tcp", f.redis.Addr()))
			defer conn.Close()
			must1(fmt.Fprintf(conn, "%s\r\n", command))
			must1(conn.Read(make([]byte, 100)))
		}
	}
	leadsTo := func(address func() string) func(*testing.T) {
		return func(*testing.T) {
			toPostgres.Redirect(address())
			toPostgres.Sever()
		}
	}
	standby := sandboxtest.Standby(t, f.postgres, nil)
	f.play(t, []outage{
		{"Redis hangs", "RedisDown", withoutRedis, does(f.redis.Freeze), does(f.redis.Thaw), nil, true},
		{"Redis becomes a replica", "RedisDown", withoutRedis, toRedis("REPLICAOF 127.0.0.1 1"), toRedis("REPLICAOF NO ONE"), nil, false},
		{"Postgres hangs", "PostgresDown", withoutPostgres, does(f.postgres.Freeze), does(f.postgres.Thaw), nil, false},
		{"Postgres is killed", "PostgresDown", withoutPostgres, func(t *testing.T) { must(f.postgres.Kill(syscall.SIGQUIT)) },
			func(t *testing.T) { must(f.postgres.Restart(t.Context())) }, nil, false},
		{"a standby answers for Postgres", "PostgresDown", "NoFollower FreshnessUntrusted", leadsTo(standby.Addr), leadsTo(f.postgres.Addr), nil, false},
		// Which Postgres has nothing to do with.
		{"the load balancer is killed while Postgres hangs", "LoadBalancerDown PostgresDown", "NoTraffic NoFollower",
			func(*testing.T) { must(f.postgres.Freeze()); must(f.balancer.End(time.Minute, syscall.SIGKILL)) },
			func(*testing.T) { f.startHAProxy(t); must(f.postgres.Thaw()) }, nil, false},
		{"a node reads another database", "WrongDatabase", "NodeNotReady", func(t *testing.T) {
			psql(t, f, "CREATE DATABASE other")
			url := "LISTEDGE_DATABASE_URL=" + f.postgres.URL("other")
			listedge(t, []string{url}, "migrate", "up")
			f.add(t, url)
		}, func(*testing.T) { f.nodes = f.nodes[:3] }, nil, false},
		{"a certificate expires, connections are used up, a transaction retains WAL", "CertificateExpiresSoon ConnectionsNearLimit RetainedWAL",
			"CertificateExpires", func(t *testing.T) {
				cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
				sandboxtest.Certificate(t, "node", 24*time.Hour, cert, key)
				f.add(t, "LISTEDGE_TLS_CERT="+cert, "LISTEDGE_TLS_KEY="+key)
				f.add(t, "LISTEDGE_MAX_CONNECTIONS=20").connect(t, 19)
				db := must1(pgx.Connect(t.Context(), f.postgres.URL("postgres")))
				t.Cleanup(func() { _ = db.Close(context.Background()) })
				for _, statement := range []string{"BEGIN", "CREATE TEMPORARY TABLE x ()"} {
					must1(db.Exec(t.Context(), statement))
				}
				for range 4 { // 16 MiB each
					psql(t, f, "SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
				}
			}, func(*testing.T) { f.nodes = f.nodes[:3] }, nil, false},
	})
}

// connect opens connections to the node until the test ends.
func (n *node) connect(t *testing.T, many int) {
	t.Helper()
	n.awaitMode(t, "followed")
	for range many {
		client := &http.Client{Transport: &http.Transport{}}
		answer := must1(client.Get("http://" + n.public + "/docs"))
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		t.Cleanup(client.CloseIdleConnections)
	}
}
