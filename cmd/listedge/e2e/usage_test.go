package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/usage"
)

// usageOf is what `listedge usage --json` prints.
func usageOf(t *testing.T, database, workspace string, flags ...string) (u admin.Usage) {
	t.Helper()
	printed := command(t, append([]string{"usage", "--database-url", database, "--workspace", workspace, "--json"}, flags...)...)
	decoder := json.NewDecoder(strings.NewReader(printed))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&u); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	return u
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
	other, _ := workspaceWithKey(t, database)
	execute(t, database, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || n FROM generate_series(1, 500) n", workspace)
	busy, _ := keyNamed(t, database, workspace, "busy", "--rate", "100000")
	limited, limitedID := keyNamed(t, database, workspace, "limited", "--rate", "0.001", "--burst", "5")
	blocked, _ := keyNamed(t, database, workspace, "no contacts", "--scopes", "items:read")
	keyNamed(t, database, workspace, "unused")
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
	within(t, patience, "a request that bypasses the caches", func() bool { // none does whose page has just been read
		busy.get(t, nodes[0], "GET", "/v1/items", "Cache-Control: no-cache")
		return busy.seen.Bypassed > 0
	})
	if limited.seen.Refused == 0 || busy.seen.NotModified != 20 {
		t.Fatalf("%+v, %+v", limited.seen, busy.seen)
	}

	queries := func() (n uint64) {
		for _, node := range nodes {
			n += uint64(node.metric(t, "listedge_origin_fetches_total"))
		}
		return n
	}
	equal := func(u admin.Usage) bool {
		sum := usage.Counts{Queries: queries()}
		for _, k := range []*keyed{busy, limited, blocked} {
			got := ofKey(u, k.name)
			got.Queries = 0
			if got != k.seen {
				return false
			}
			sum.Add(got)
		}
		return u.Totals == sum
	}
	var u admin.Usage
	within(t, patience, "usage equals what clients have seen", func() bool {
		u = usageOf(t, database, workspace)
		return equal(u)
	})
	if len(u.Keys) != 3 || u.Keys[0].Name != "busy" || u.WorkspaceID.String() != workspace || ofKey(u, "no contacts").Queries != 0 ||
		ofKey(u, "busy").Queries < 20 {
		t.Errorf("%+v", u)
	}
	if u.Since.Minute() != 0 || u.Until.Sub(u.Since) < 24*time.Hour || u.Until.Sub(u.Since) > 25*time.Hour {
		t.Errorf("since %s, until %s", u.Since, u.Until)
	}
	for _, k := range u.Keys {
		if k.LastUsedAt == nil || k.LastUsedAt.Before(began) || k.LastUsedAt.After(time.Now()) ||
			!strings.HasPrefix(map[string]*keyed{"busy": busy, "limited": limited, "no contacts": blocked}[k.Name].text, k.Prefix) {
			t.Errorf("%+v", k)
		}
	}
	if text := command(t, "usage", "--database-url", database, "--workspace", workspace, "--since", "7d"); !strings.Contains(text, "busy") ||
		!strings.Contains(text, fmt.Sprint(u.Totals.Requests)) {
		t.Error(text)
	}
	if empty := command(t, "usage", "--database-url", database, "--workspace", other, "--json"); !strings.Contains(empty, `"keys":[]`) {
		t.Error(empty)
	}

	use(3) // what was counted last is written at shutdown
	want := queries()
	for _, n := range nodes {
		if code := n.stop(); code != exitFine {
			t.Fatal(n.err.String())
		}
	}
	u = usageOf(t, database, workspace, "--since", "1h")
	for _, k := range []*keyed{busy, limited, blocked} {
		got := ofKey(u, k.name)
		if got.Queries = 0; got != k.seen {
			t.Errorf("%s: %+v, and clients have seen %+v", k.name, got, k.seen)
		}
	}
	if u.Totals.Queries < want {
		t.Errorf("%d queries, of at least %d", u.Totals.Queries, want)
	}

	type listed struct {
		Name       string
		LastUsedAt *time.Time
	}
	list := func(flags ...string) (names []string, warned string) {
		p := start(t, append([]string{"keys", "list", "--database-url", database, "--workspace", workspace, "--json"}, flags...)...)
		<-p.ended
		var all []listed
		if err := json.Unmarshal([]byte(p.out.String()), &all); err != nil {
			t.Fatal(err, p.err.String())
		}
		for _, k := range all {
			if k.Name != "" {
				names = append(names, fmt.Sprint(k.Name, " ", k.LastUsedAt != nil))
			}
		}
		return names, p.err.String()
	}
	all, warned := list()
	if strings.Join(all, ", ") != "busy true, limited true, no contacts true, unused false" || warned != "" {
		t.Error(all, warned)
	}
	execute(t, database, "UPDATE api_keys SET created_at = created_at - interval '100 days'")
	if unused, warned := list("--unused-for", "90d"); strings.Join(unused, ", ") != "unused false" || !strings.Contains(warned, "counted since") {
		t.Error(unused, warned)
	}
	execute(t, database, "UPDATE usage_writers SET written_at = now() - interval '100 days' WHERE batch = 0")
	execute(t, database, "UPDATE key_last_used SET last_used_at = now() - interval '91 days' WHERE key_id = $1", limitedID)
	if unused, warned := list("--unused-for", "90d"); strings.Join(unused, ", ") != "limited true, unused false" || warned != "" {
		t.Error(unused, warned)
	}
	if unused, _ := list("--unused-for", "110d"); len(unused) != 0 {
		t.Error(unused)
	}

	execute(t, database, "DELETE FROM api_keys WHERE id = $1", limitedID)
	if after := usageOf(t, database, workspace); after.Totals != u.Totals || len(after.Keys) != len(u.Keys) {
		t.Errorf("%+v, and before a key was deleted %+v", after, u)
	}
	if text := command(t, "usage", "--database-url", database, "--workspace", workspace); !strings.Contains(text, limitedID+"  (deleted)") {
		t.Error(text)
	}
}

// A killed node loses only what it has not written yet. The next run counts nothing twice.
func TestAKilledNodeLosesTheLastCountsAlone(t *testing.T) {
	t.Parallel()
	database := database(t)
	workspace, key := workspaceWithKey(t, database)
	total := func() int64 { return int64(usageOf(t, database, workspace).Totals.Requests) }
	k := keyed{text: key}
	requests := func(n *testNode, times int) (counted int64) { // more than that if some were not answered in time
		before := k.seen.Requests
		for range times {
			k.get(t, n, "GET", "/v1/items")
		}
		return int64(k.seen.Requests - before)
	}
	n := launchNode(t, database)
	n.awaitReady(t)
	written := requests(n, 50)
	within(t, patience, "what is written", func() bool { return total() == written })
	late := requests(n, 30)
	n.signal(syscall.SIGKILL)
	<-n.ended
	lost := written + late - total()
	if lost < 0 || lost > late {
		t.Fatalf("%d of %d are lost", lost, late)
	}
	n = launchNode(t, database)
	n.awaitReady(t)
	after := requests(n, 20)
	if code := n.stop(); code != exitFine {
		t.Fatal(n.err.String())
	}
	if got := total(); got != written+late+after-lost {
		t.Errorf("%d requests, want %d", got, written+late+after-lost)
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
	execute(t, address, "REVOKE INSERT, UPDATE, DELETE ON key_usage, key_last_used, usage_writers FROM "+role)
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
	if f.Level != admin.Warn || !strings.Contains(f.Remedy, "GRANT SELECT, INSERT, UPDATE, DELETE ON public.key_usage TO "+role) {
		t.Errorf("%+v", f)
	}
	k.get(t, n, "GET", "/v1/items")
	execute(t, address, f.Remedy)
	within(t, patience, "what was counted is written", func() bool { return usageOf(t, address, workspace).Totals.Requests == k.seen.Requests })
	within(t, patience, "that is logged", func() bool { return strings.Contains(n.err.String(), again) })
	if strings.Count(n.err.String(), broken) != 1 {
		t.Error(n.err.String())
	}
	expect(t, diagnose(t, exitFine, "--database-url", reader), "usage", admin.OK, "")
}
