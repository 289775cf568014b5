package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"listedge/cmd/listedge/doctor"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/usage"
)

// usageOf is what `listedge usage --json` prints.
func usageOf(t *testing.T, database, workspace string, flags ...string) admin.Usage {
	t.Helper()
	return parsed[admin.Usage](t, append([]string{"usage", "--database-url", database, "--workspace", workspace}, flags...)...)
}

// ofKey is the usage of the key with that name.
func ofKey(u admin.Usage, name string) usage.Counts {
	for _, k := range u.Keys {
		if k.Name == name {
			return k.Counts
		}
	}
	return usage.Counts{}
}

// keyed is a key that a test uses, and the counts of the responses that it got.
type keyed struct {
	name, text string
	mu         sync.Mutex // guards seen
	seen       usage.Counts
}

// get sends a request and counts the answer as the client sees it. A busy machine may not look up the key or
// read the page in time: get asks again.
func (k *keyed) get(t *testing.T, n *testNode, method, path string, headers ...string) (a *answer) {
	t.Helper()
	within(t, patience, "an answer", func() bool {
		a = n.request(t, method, path, k.text, append([]string{"Accept-Encoding: gzip"}, headers...)...)
		if !strings.Contains(string(a.body), "API keys cannot be checked") { // else nobody knows whose request it was
			k.count(a)
		}
		return a.StatusCode != http.StatusServiceUnavailable
	})
	return a
}

func (k *keyed) count(a *answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen.Requests++
	k.seen.Bytes += uint64(len(a.body))
	if strings.HasPrefix(cacheStatus(a.Header), "listedge; fwd=bypass") {
		k.seen.Bypassed++
	}
	switch a.StatusCode {
	case http.StatusNotModified:
		k.seen.NotModified++
	case http.StatusTooManyRequests:
		k.seen.Refused++
	}
}

// keyNamed makes a key and returns it with its id.
func keyNamed(t *testing.T, database, workspace, name string, flags ...string) (k *keyed, id string) {
	t.Helper()
	made := parsed[newKey](t, append([]string{"keys", "create", "--database-url", database, "--workspace", workspace, "--name", name}, flags...)...)
	return &keyed{name: name, text: made.Key}, made.ID
}

// What `listedge usage` prints equals what clients of two nodes have seen.
func TestUsageIsWhatTheNodesAnswered(t *testing.T) {
	t.Parallel()
	database, redis := database(t), sandboxtest.Redis(t).URL()
	began := time.Now()
	workspace, _ := workspaceWithKey(t, database)
	execute(t, database, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || n FROM generate_series(1, 100) n", workspace)
	busy, _ := keyNamed(t, database, workspace, "busy", "--rate", "100000")
	limited, limitedID := keyNamed(t, database, workspace, "limited", "--rate", "0.001", "--burst", "5")
	blocked, _ := keyNamed(t, database, workspace, "no contacts", "--scopes", "items:read")
	nodes := []*testNode{startNode(t, database, "--redis-url", redis), startNode(t, database, "--redis-url", redis)}

	use := func(times int) {
		t.Helper()
		for i := range times {
			n := nodes[i%2]
			tag := busy.get(t, n, "GET", "/v1/items").Header.Get("ETag")
			if a := busy.get(t, n, "GET", "/v1/items", "If-None-Match: "+tag); a.StatusCode != http.StatusNotModified {
				t.Fatal(a.Status)
			}
			busy.get(t, n, "HEAD", "/v1/items")
			busy.get(t, n, "GET", "/v1/items", "Cache-Control: no-cache")
			busy.get(t, n, "GET", "/v1/items?color=red")
			busy.get(t, n, "GET", fmt.Sprintf("/v1/items?search=%d&limit=7", i))
			limited.get(t, n, "GET", "/v1/contacts")
			if a := blocked.get(t, n, "GET", "/v1/contacts"); a.StatusCode != http.StatusForbidden {
				t.Fatal(a.Status)
			}
		}
		for next := "/v1/items?limit=20&sort=name"; next != ""; { // reads the next page ahead
			next = busy.get(t, nodes[0], "GET", next).next(t)
		}
	}
	use(10)
	command(t, "keys", "update", limitedID, "--burst", "8", "--database-url", database) // counters survive it
	use(10)
	busy.get(t, nodes[0], "GET", "/v1/items?search=bypass", "Cache-Control: no-cache") // no node has the page
	if busy.seen.Bypassed == 0 {
		t.Fatalf("%+v", busy.seen)
	}
	if limited.seen.Refused == 0 || busy.seen.NotModified != 20 {
		t.Fatalf("%+v, %+v", limited.seen, busy.seen)
	}

	queries := func() (n uint64) {
		for _, node := range nodes {
			n += uint64(node.metric(t, "listedge_origin_fetches_total"))
		}
		return n
	}
	keys := []*keyed{busy, limited, blocked}
	equal := func(u admin.Usage) bool {
		sum := usage.Counts{Queries: u.Totals.Queries}
		for _, k := range keys {
			got := ofKey(u, k.name)
			if got.Queries = 0; got != k.seen {
				return false
			}
			sum.Add(got)
		}
		return u.Totals == sum
	}
	var u admin.Usage
	within(t, patience, "usage equals what clients have seen", func() bool {
		u = usageOf(t, database, workspace)
		return equal(u) && u.Totals.Queries == queries()
	})
	if len(u.Keys) != 3 || u.Keys[0].Name != "busy" || u.WorkspaceID.String() != workspace || ofKey(u, "no contacts").Queries != 0 ||
		ofKey(u, "busy").Queries < 10 || u.Since.Minute() != 0 || u.Until.Sub(u.Since) < 24*time.Hour || u.Until.Sub(u.Since) > 25*time.Hour {
		t.Errorf("%+v", u)
	}
	for _, k := range u.Keys {
		used := keys[slices.IndexFunc(keys, func(used *keyed) bool { return used.name == k.Name })]
		if k.LastUsedAt == nil || k.LastUsedAt.Before(began) || k.LastUsedAt.After(time.Now()) || !strings.HasPrefix(used.text, k.Prefix) {
			t.Errorf("%+v", k)
		}
	}

	use(3) // what was counted last is written at shutdown
	want := queries()
	for _, n := range nodes {
		if code := n.stop(); code != exitFine {
			t.Fatal(n.err.String())
		}
	}
	if u = usageOf(t, database, workspace, "--since", "1h"); !equal(u) || u.Totals.Queries < want {
		t.Errorf("%+v, of at least %d queries; clients have seen %+v, %+v, %+v", u, want, busy.seen, limited.seen, blocked.seen)
	}
	execute(t, database, "DELETE FROM api_keys WHERE id = $1", limitedID)
	if after := usageOf(t, database, workspace); after.Totals != u.Totals || len(after.Keys) != len(u.Keys) {
		t.Errorf("%+v, and before a key was deleted %+v", after, u)
	}
	if text := command(t, "usage", "--database-url", database, "--workspace", workspace, "--since", "7d"); !strings.Contains(text, limitedID+"  (deleted)") ||
		!strings.Contains(text, "busy") || !strings.Contains(text, fmt.Sprint(u.Totals.Requests)) {
		t.Error(text)
	}
}

// `keys list --unused-for` warns if uses have been counted for a shorter time than that.
func TestUnusedKeysAreListed(t *testing.T) {
	t.Parallel()
	database := database(t)
	workspace, key := workspaceWithKey(t, database)
	late, _ := keyNamed(t, database, workspace, "late")
	keyNamed(t, database, workspace, "unused")
	n := startNode(t, database)
	for _, key := range []string{key, late.text} {
		n.first(t, "/v1/items", key).page(t)
	}
	n.stop()
	execute(t, database, "UPDATE api_keys SET created_at = created_at - interval '100 days'")
	for _, c := range []struct {
		before, unusedFor, want string
		warned                  bool
	}{
		{"SELECT", "90d", "unused", true},
		{"UPDATE listedge_usage_writers SET written_at = now() - interval '100 days' WHERE batch = 0", "90d", "unused", false},
		{"UPDATE listedge_key_last_used SET last_used_at = now() - interval '91 days' FROM api_keys WHERE key_id = id AND name = 'late'", "90d", "late unused",
			false},
		{"SELECT", "110d", "", false},
	} {
		execute(t, database, c.before)
		p := start(t, "keys", "list", "--database-url", database, "--workspace", workspace, "--unused-for", c.unusedFor)
		<-p.ended
		names := regexp.MustCompile(`\b(late|unused)\b`).FindAllString(p.out.String(), -1)
		if strings.Join(names, " ") != c.want || strings.Contains(p.err.String(), "counted since") != c.warned {
			t.Errorf("%+v: %s%s", c, p.out.String(), p.err.String())
		}
	}
}

// The role may lack the right to write. Requests are served, and
// the counts are written once the right is granted.
func TestANodeWithoutTheRightToWriteSaysSo(t *testing.T) {
	t.Parallel()
	address := database(t)
	role := "reader_of_" + address[strings.LastIndex(address, "/")+1:]
	execute(t, address, "CREATE ROLE "+role+" LOGIN PASSWORD 'p'")
	execute(t, address, command(t, "migrate", "grants", "--role", role))
	execute(t, address, "REVOKE INSERT, UPDATE, DELETE ON listedge_key_usage, listedge_key_last_used, listedge_usage_writers FROM "+role)
	reader := as(t, address, role)
	workspace, key := workspaceWithKey(t, address)
	n := startNode(t, reader)
	k := keyed{text: key}
	for range 40 {
		k.get(t, n, "GET", "/v1/items")
	}
	const broken, again = `"msg":"the usage of keys is not written to Postgres`, `"msg":"no longer: the usage of keys is not written to Postgres`
	within(t, patience, "it is logged", func() bool { return strings.Contains(n.err.String(), broken) })
	f := diagnose(t, exitFine, "--database-url", reader, "--node", n.admin)["usage"]
	if f.Level != doctor.Warn || !strings.Contains(f.Remedy, "GRANT SELECT, INSERT, UPDATE, DELETE ON public.listedge_key_usage TO "+role) {
		t.Errorf("%+v", f)
	}
	k.get(t, n, "GET", "/v1/items")
	execute(t, address, f.Remedy)
	within(t, patience, "what was counted is written", func() bool { return usageOf(t, address, workspace).Totals.Requests == k.seen.Requests })
	within(t, patience, "that is logged", func() bool { return strings.Contains(n.err.String(), again) })
	if log := n.err.String(); strings.Count(log, broken) > 1+strings.Count(log, again) { // more than once each way; a slow server may fail, too
		t.Error(log)
	}
	expect(t, diagnose(t, exitFine, "--database-url", reader), "usage", doctor.OK, "")
}
