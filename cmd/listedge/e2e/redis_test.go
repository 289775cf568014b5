package e2e

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// pair is two nodes, as processes, on one Redis.
type pair struct {
	nodes          [2]*testNode
	database       string
	workspace, key string
	pages          int // requested so far
}

func startPair(t *testing.T, environment []string, redisURL string) *pair {
	t.Helper()
	p := &pair{database: database(t)}
	p.workspace, p.key = workspaceWithKey(t, p.database)
	for i := range p.nodes {
		// So large a bound that a busy machine does not end it.
		p.nodes[i] = launchProgram(t, listedge, environment, p.database, "--redis-url", redisURL, "--freshness-bound", "30s", "--cache-ttl", "1h")
	}
	return p
}

// awaitFollowed waits until changes reach both nodes.
func (p *pair) awaitFollowed(t *testing.T) {
	t.Helper()
	for _, n := range p.nodes {
		n.awaitReady(t)
		n.awaitFollowed(t)
	}
}

// awaitShared requests pages from the first node and then from the second, until the second has
// served fifteen in a row from Redis. A page is stored behind its answer, and on a busy machine
// it may miss its budget.
func (p *pair) awaitShared(t *testing.T) {
	t.Helper()
	areShared := func() (shared bool) {
		shared = true
		for _, n := range p.nodes {
			for i := range 15 {
				a := n.get(t, fmt.Sprintf("/v1/items?search=%d", p.pages+i), p.key)
				shared = shared && (n == p.nodes[0] || cacheStatus(a.Header) == "listedge; hit; detail=redis")
			}
		}
		p.pages += 15
		return shared
	}
	within(t, patience, "fifteen pages in a row come from Redis", areShared)
	for _, n := range p.nodes { // a busy machine may have opened one; it closes
		within(t, patience, "the breakers close", func() bool {
			areShared()
			return n.metric(t, "listedge_cache_redis_breaker_open")+n.metric(t, "listedge_limiter_breaker_open") == 0
		})
	}
}

// checkRest checks the other uses of Redis: limits, changes and revocations.
func (p *pair) checkRest(t *testing.T) {
	t.Helper()
	few := newKeyFor(t, p.database, p.workspace, "--rate", "0.001", "--burst", "6")
	admitted := 0
	for range 6 {
		for _, n := range p.nodes {
			if n.get(t, "/v1/contacts", few).StatusCode == 200 {
				admitted++
			}
		}
	}
	if admitted == 0 || admitted > 6 {
		t.Errorf("%d requests were admitted for a burst of 6", admitted)
	}
	execute(t, p.database, "INSERT INTO items (workspace_id, name) VALUES ($1, 'It travels')", p.workspace)
	for _, n := range p.nodes {
		within(t, patience, "the change travels", func() bool {
			return strings.Contains(string(n.get(t, "/v1/items", p.key).body), "It travels")
		})
	}
	execute(t, p.database, "UPDATE api_keys SET revoked_at = now() WHERE rate_per_second < 1")
	for _, n := range p.nodes {
		within(t, patience, "the revocation travels", func() bool { return n.get(t, "/v1/items", few).StatusCode == 401 })
	}
	execute(t, p.database, "DELETE FROM items")
}

// tlsRedis starts a Redis that speaks one version of TLS as well, and returns
// the environment in which its certificate is trusted.
func tlsRedis(t *testing.T, version string) (r *sandbox.Redis, url string, environment []string) {
	t.Helper()
	dir := sandboxtest.Dir(t)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	sandboxtest.Certificate(t, "redis", time.Hour, cert, key)
	port := must1(sandbox.FreePort())
	r = sandboxtest.Redis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert,
		"--tls-auth-clients", "no", "--tls-protocols", version)
	return r, "rediss://127.0.0.1:" + port, []string{"SSL_CERT_FILE=" + cert}
}

// Two nodes share what is in Redis over each kind of connection, also after a restart of Redis.
func TestNodesShareWhatIsInRedis(t *testing.T) {
	t.Parallel()
	for _, spoken := range []string{"plain", "TLSv1.2", "TLSv1.3"} {
		t.Run(spoken, func(t *testing.T) {
			t.Parallel()
			var r *sandbox.Redis
			var url string
			var environment []string
			if spoken == "plain" {
				r = sandboxtest.Redis(t)
				url = r.URL()
			} else {
				if runtime.GOOS == "darwin" {
					t.Log("Go trusts the keychain alone there")
					return
				}
				r, url, environment = tlsRedis(t, spoken)
			}
			p := startPair(t, environment, url)
			p.awaitFollowed(t)
			p.awaitShared(t)
			p.checkRest(t)
			must(r.Kill())
			must(r.Restart(t.Context()))
			p.awaitFollowed(t)
			p.awaitShared(t)
			p.checkRest(t)
		})
	}
}

// A wrong password is corrected while the nodes run.
func TestNodesShareOnceTheirPasswordIsRight(t *testing.T) {
	t.Parallel()
	r := sandboxtest.Redis(t, "--user", "admin", "on", "nopass", "~*", "&*", "+@all")
	admin := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "admin", Password: "any"})
	t.Cleanup(func() { _ = admin.Close() })
	requirePassword := func(password string) {
		t.Helper()
		must(admin.ConfigSet(t.Context(), "requirepass", password).Err())
	}
	requirePassword("another")
	p := startPair(t, nil, "redis://:right@"+r.Addr())
	for _, n := range p.nodes {
		n.awaitReady(t)
		n.get(t, "/v1/items", p.key)
		n.awaitCheck(t, "redis", "WRONGPASS")
	}
	requirePassword("right")
	p.awaitFollowed(t)
	p.awaitShared(t)
	p.checkRest(t)
}

// Values of other types than ours at all keys in Redis cost a fleet its proofs for a moment.
// Nobody has to remove them, and no request is refused.
func TestAFleetRecoversFromDamagedKeys(t *testing.T) {
	t.Parallel()
	address := database(t)
	server, client := redistest.Start(t)
	workspace, key := workspaceWithKey(t, address)
	nodes := []*testNode{startNode(t, address, "--redis-url", server.URL()), startNode(t, address, "--redis-url", server.URL())}
	well := func() bool {
		for _, n := range nodes {
			a := n.get(t, "/v1/items", key)
			if a.StatusCode != 200 {
				t.Fatalf("%s %s", a.Status, a.body)
			}
			if n.mode() != "followed" || n.metric(t, "listedge_limiter_nodes") != 2 || n.metric(t, "listedge_limiter_breaker_open") != 0 ||
				!strings.Contains(a.Header.Get("Cache-Status"), "hit") {
				return false
			}
		}
		return true
	}
	within(t, patience, "all is well", well)
	for name, damage := range map[string]func(key string) error{
		"a set":    func(key string) error { return client.SAdd(t.Context(), key, "x").Err() },
		"a string": func(key string) error { return client.Set(t.Context(), key, "x", 0).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			types := map[string]string{}
			for _, key := range client.Keys(t.Context(), "listedge:*").Val() {
				if strings.HasPrefix(key, "listedge:{changes}:") && !strings.Contains(key, ":log:") || key == "listedge:{fleet}:members" {
					types[key] = client.Type(t.Context(), key).Val()
				}
				must(client.Del(t.Context(), key).Err())
				must(damage(key))
			}
			if len(types) != 4 {
				t.Fatal(types)
			}
			for key, want := range types {
				within(t, patience, key+" is written anew", func() bool {
					return client.Type(t.Context(), key).Val() == want && client.Get(t.Context(), key).Val() != "x"
				})
			}
			execute(t, address, "INSERT INTO items (workspace_id, name) VALUES ($1, $2)", workspace, "after "+name)
			for _, n := range nodes {
				within(t, patience, "a change is seen", func() bool { return strings.Contains(string(n.get(t, "/v1/items", key).body), "after "+name) })
			}
			within(t, patience, "all is well again", well)
		})
	}
}
