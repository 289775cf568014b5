// Package redistest makes clients of a private Redis, for tests. It is apart
// from sandboxtest, which needs no client.
package redistest

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// Options are those of a node's Redis clients, but with long timeouts: what keeps a request
// short is the code under test.
func Options(addresses ...string) *redis.UniversalOptions {
	const patient = 10 * time.Second
	return &redis.UniversalOptions{
		Addrs: addresses, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: patient, ReadTimeout: patient, WriteTimeout: patient,
		PoolTimeout: patient, PoolSize: 64, DisableIdentity: true, Protocol: 2,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Start starts a private Redis and makes a client of it.
func Start(t testing.TB) (*sandbox.Redis, *redis.Client) {
	t.Helper()
	server := sandboxtest.Redis(t)
	return server, Client(t, server)
}

// Client makes a client of a private Redis with Options.
func Client(t testing.TB, server *sandbox.Redis) *redis.Client {
	t.Helper()
	client := redis.NewClient(Options(server.Addr()).Simple())
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Cluster starts a Cluster of three masters, a third of the slots each, and makes
// a client of it.
func Cluster(t testing.TB) (servers []*sandbox.Redis, client *redis.ClusterClient) {
	t.Helper()
	options := Options()
	for i := range 3 {
		server := sandboxtest.Redis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "15000", "--cluster-require-full-coverage", "no")
		// Since Redis 7 a master that loses its last slot becomes a replica otherwise.
		_ = Client(t, server).ConfigSet(t.Context(), "cluster-allow-replica-migration", "no").Err()
		first := i * 16384 / 3
		if err := Client(t, server).ClusterAddSlotsRange(t.Context(), first, (i+1)*16384/3-1).Err(); err != nil {
			t.Fatal(err)
		}
		servers, options.Addrs = append(servers, server), append(options.Addrs, server.Addr())
	}
	meet := func() { // again, because a handshake that a busy machine holds up is given up
		for _, server := range servers[1:] {
			host, port, _ := net.SplitHostPort(server.Addr())
			if err := Client(t, servers[0]).ClusterMeet(t.Context(), host, port).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, server := range servers {
		c, met := Client(t, server), time.Time{}
		sandboxtest.Within(t, 2*time.Minute, "the Cluster is whole", func() bool {
			if time.Since(met) > 10*time.Second {
				meet()
				met = time.Now()
			}
			info := c.ClusterInfo(t.Context()).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384")
		})
	}
	client = redis.NewClusterClient(options.Cluster())
	t.Cleanup(func() { _ = client.Close() })
	return servers, client
}

// Silence keeps clients from logging, for TestMain: dead servers are what
// many tests are about.
func Silence() { logging.Disable() }
