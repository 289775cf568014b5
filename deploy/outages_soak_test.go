//go:build soak

package deploy_test

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// TestSoakOutages plays those outages for which `make test` has no time.
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
		{"Redis hangs", "RedisDown", withoutRedis, does(f.redis.Freeze), does(f.redis.Thaw), nil},
		{"Redis becomes a replica", "RedisDown", withoutRedis, toRedis("REPLICAOF 127.0.0.1 1"), toRedis("REPLICAOF NO ONE"), nil},
		{"Postgres is killed", "PostgresDown", withoutPostgres, func(t *testing.T) { must(f.postgres.Kill(syscall.SIGQUIT)) },
			func(t *testing.T) { must(f.postgres.Restart(t.Context())) }, nil},
		{"a standby answers for Postgres", "PostgresDown", "NoFollower FreshnessUntrusted", leadsTo(standby.Addr), leadsTo(f.postgres.Addr), nil},
		{"a node reads another database", "WrongDatabase", "NodeNotReady", func(t *testing.T) {
			psql(t, f, "CREATE DATABASE other")
			url := "LISTEDGE_DATABASE_URL=" + f.postgres.URL("other")
			listedge(t, []string{url}, "migrate", "up")
			f.add(t, url)
		}, func(*testing.T) { f.nodes = f.nodes[:3] }, nil},
	})
}
