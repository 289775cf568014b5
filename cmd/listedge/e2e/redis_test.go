package e2e

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cmd/listedge/doctor"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// pair is a fleet of two nodes on one Redis.
type pair struct {
	fleet
	workspace, key string
	pages          int // requested so far
}

func startPair(t *testing.T, environment []string, redisURL string) *pair {
	t.Helper()
	p := &pair{fleet: fleet{url: database(t)}}
	p.workspace, p.key = workspaceWithKey(t, p.url)
	for range 2 {
		// So large a bound that a busy machine does not end it.
		n := launchProgram(t, listedge, environment, p.url, "--redis-url", redisURL, "--freshness-bound", "30s", "--cache-ttl", "1h")
		n.awaitReady(t)
		p.nodes = append(p.nodes, n)
	}
	return p
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
	few := newKeyFor(t, p.url, p.workspace, "--rate", "0.001", "--burst", "6")
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
	execute(t, p.url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'It travels')", p.workspace)
	for _, n := range p.nodes {
		within(t, patience, "the change travels", func() bool {
			return strings.Contains(string(n.get(t, "/v1/items", p.key).body), "It travels")
		})
	}
	execute(t, p.url, "UPDATE api_keys SET revoked_at = now() WHERE rate_per_second < 1")
	for _, n := range p.nodes {
		within(t, patience, "the revocation travels", func() bool { return n.get(t, "/v1/items", few).StatusCode == 401 })
	}
	execute(t, p.url, "DELETE FROM items")
}

// tlsRedis starts a Redis that speaks TLS as well, and returns the environment in which its certificate is trusted.
func tlsRedis(t *testing.T) (r *sandbox.Redis, url string, environment []string) {
	t.Helper()
	dir := sandboxtest.Dir(t)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	sandboxtest.Certificate(t, "redis", time.Hour, cert, key)
	port := must1(sandbox.FreePort())
	r = sandboxtest.Redis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert,
		"--tls-auth-clients", "no", "--tls-protocols", "TLSv1.3")
	return r, "rediss://127.0.0.1:" + port, []string{"SSL_CERT_FILE=" + cert}
}

// Two nodes share what is in Redis over TLS, also after a restart of Redis. TestARedisUserWithTheDocumentedRightsIsEnough shows it without.
func TestNodesShareWhatIsInRedis(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "darwin" {
		t.Log("Go trusts the keychain alone there")
		return
	}
	r, url, environment := tlsRedis(t)
	p := startPair(t, environment, url)
	for again := range 2 {
		if again == 1 {
			must(r.Kill())
			must(r.Restart(t.Context()))
		}
		p.awaitFollowed(t)
		p.awaitShared(t)
		p.checkRest(t)
	}
}

// documentedUser is the line of docs/SECURITY.md that makes the nodes' user.
func documentedUser(t *testing.T) (line []any) {
	t.Helper()
	for one := range strings.Lines(contents(t, "docs/SECURITY.md")) {
		if strings.HasPrefix(one, "ACL SETUSER") {
			for _, word := range strings.Fields(one) {
				line = append(line, word)
			}
		}
	}
	if len(line) < 10 {
		t.Fatal("docs/SECURITY.md names no user")
	}
	return line
}

// withUser starts a Redis with that user, and returns the URL of its nodes.
func withUser(t *testing.T, line []any) (server *sandbox.Redis, client *redis.Client, url string) {
	t.Helper()
	server = sandboxtest.Redis(t)
	client = redistest.Client(t, server)
	must(client.Do(t.Context(), line...).Err())
	return server, client, "redis://" + line[2].(string) + ":PASSWORD@" + server.Addr()
}

// refusals are the commands that Redis refused because a right was missing.
func refusals(t *testing.T, client *redis.Client) string {
	t.Helper()
	log := must1(client.Do(t.Context(), "ACL", "LOG").Result())
	if entries := log.([]any); len(entries) > 0 {
		return redis.NewCmdResult(entries, nil).String()
	}
	return ""
}

// A fleet works with the rights that the documentation names, and the doctor finds it whole.
func TestARedisUserWithTheDocumentedRightsIsEnough(t *testing.T) {
	t.Parallel()
	_, client, url := withUser(t, documentedUser(t))
	p := startPair(t, nil, url)
	p.awaitFollowed(t)
	p.awaitShared(t)
	p.checkRest(t)
	for _, n := range p.nodes {
		n.awaitCheck(t, "redis", "ok")
	}
	by := diagnose(t, exitFine, "--database-url", p.url, "--redis-url", url)
	expect(t, by, "redis", doctor.OK, "the user has all rights")
	expect(t, by, "redis eviction", doctor.OK, "")
	for _, n := range p.nodes {
		if code := n.stop(); code != exitFine {
			t.Errorf("exit %d", code)
		}
	}
	if said := refusals(t, client); said != "" {
		t.Errorf("Redis refused: %s", said)
	}
	for _, key := range client.Keys(t.Context(), "*doctor*").Val() {
		t.Errorf("the doctor has left %q", key)
	}
}

// If one of the rights is missing, the doctor names it.
func TestDoctorNamesTheRightThatARedisUserLacks(t *testing.T) {
	t.Parallel()
	address := database(t)
	line := documentedUser(t)
	server := sandboxtest.Redis(t)
	client := redistest.Client(t, server)
	for i, right := range line {
		name := right.(string)
		if i < 5 || name[0] != '+' && name[0] != '~' {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			weak := append(append([]any{}, line[:i]...), line[i+1:]...)
			weak[2] = fmt.Sprint("without", i)
			must(client.Do(t.Context(), weak...).Err())
			url := fmt.Sprintf("redis://%s:PASSWORD@%s", weak[2], server.Addr())
			within(t, patience, "it is named", func() bool {
				findings, p := consult(t, "--database-url", address, "--redis-url", url)
				return p.code == exitFailed && slices.ContainsFunc(findings, func(f doctor.Finding) bool {
					return f.Level != doctor.OK && strings.HasPrefix(f.Subject, "redis") &&
						(strings.Contains(f.Text, name) || strings.Contains(f.Text, "'"+name[1:]+"'") || strings.Contains(f.Text, strings.ToUpper(name[1:])))
				})
			})
		})
	}
}

// A Redis that answers a ping and refuses writes is down: /readyz and the doctor say why, and
// what to do.
func TestARedisThatRefusesWritesIsDown(t *testing.T) {
	t.Parallel()
	address := database(t)
	_, client, url := withUser(t, []any{"ACL", "SETUSER", "weak", "on", ">PASSWORD", "~*", "-@all", "+ping"})
	n := startNode(t, address, "--redis-url", url)
	for _, c := range []struct {
		refusal, do string
		begin, end  []any
	}{
		{"NOPERM", "docs/SECURITY.md", []any{"PING"}, []any{"ACL", "SETUSER", "weak", "+@all"}},
		{"OOM", "raise maxmemory", []any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}},
		{"READONLY", "name the master", []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}},
	} {
		t.Run(c.refusal, func(t *testing.T) {
			must(client.Do(t.Context(), c.begin...).Err())
			n.awaitCheck(t, "redis", c.refusal)
			n.awaitCheck(t, "redis", c.do)
			within(t, patience, "it is down", func() bool { return n.metric(t, "listedge_check_up", `check="redis"`) == 0 })
			expect(t, diagnose(t, exitFailed, "--database-url", address, "--redis-url", url), "redis", doctor.Fail, c.do)
			must(client.Do(t.Context(), c.end...).Err())
			within(t, patience, "it is up", func() bool { return n.metric(t, "listedge_check_up", `check="redis"`) == 1 })
			n.awaitCheck(t, "redis", "ok")
		})
	}
}

// The same on a Cluster, with what the documentation adds for one.
func TestARedisUserOfAClusterWithTheDocumentedRightsIsEnough(t *testing.T) {
	t.Parallel()
	servers, _ := redistest.Cluster(t)
	line := append(documentedUser(t), "+cluster|slots", "+command", "+asking")
	var clients []*redis.Client
	var addresses []string
	for _, server := range servers {
		client := redistest.Client(t, server)
		must(client.Do(t.Context(), line...).Err())
		clients, addresses = append(clients, client), append(addresses, server.Addr())
	}
	address := database(t)
	_, key := workspaceWithKey(t, address)
	url := "redis://" + line[2].(string) + ":PASSWORD@" + strings.Join(addresses, ",")
	n := startFollowed(t, address, "--redis-url", url, "--freshness-bound", "30s")
	for i := range 30 {
		n.get(t, "/v1/items?limit="+strconv.Itoa(i+1), key)
	}
	within(t, patience, "all is well", func() bool { return n.check(t, "redis") == "ok" })
	by := diagnose(t, exitFine, "--database-url", address, "--redis-url", url)
	expect(t, by, "redis", doctor.OK, "the user has all rights")
	n.stop()
	for _, client := range clients {
		if said := refusals(t, client); said != "" {
			t.Errorf("Redis refused: %s", said)
		}
	}
}
