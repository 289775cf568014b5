package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"listedge/cmd/listedge/doctor"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// documentedUser is the line of docs/SECURITY.md that makes the nodes' user.
func documentedUser(t *testing.T) (line []any) {
	t.Helper()
	text := must1(os.ReadFile("../../../docs/SECURITY.md"))
	for one := range strings.Lines(string(text)) {
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
	by := diagnose(t, exitFine, "--database-url", p.database, "--redis-url", url)
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
	for i, right := range line {
		name := right.(string)
		if i < 5 || name[0] != '+' && name[0] != '~' {
			continue
		}
		t.Run(name, func(t *testing.T) {
			_, _, url := withUser(t, append(append([]any{}, line[:i]...), line[i+1:]...))
			found := false
			for _, f := range examine(t, exitFailed, "--database-url", address, "--redis-url", url) {
				found = found || f.Level != doctor.OK && strings.HasPrefix(f.Subject, "redis") &&
					(strings.Contains(f.Text, name) || strings.Contains(f.Text, "'"+name[1:]+"'") || strings.Contains(f.Text, strings.ToUpper(name[1:])))
			}
			if !found {
				t.Error("not named")
			}
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
