//go:build !race

package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// Ways through the code are how somebody new reads it. Each is a list of files in a package
// comment. The test does each thing many times on a real node that counts its statements, and
// compares: a way names the files that run each time, and no other.
func TestWaysThroughTheCode(t *testing.T) { // beside no other: proofs come in time
	const edge, limiter, follower, feed = "edge/server.go", "limiter/limiter.go", "origin/follower/follower.go", "internal/changefeed/log.go"
	hit, published := of(wayOf(t, edge, "A hit", 10)...), of(wayOf(t, follower, "A change is published", 10)...)
	miss, applied := of(wayOf(t, edge, "A miss", 16)...), of(wayOf(t, feed, "A change is applied", 4)...)
	decision := of(wayOf(t, limiter, "A limit decision", 4)...)
	ways := []struct {
		in, name string
		most     int                    // files
		part     func(file string) bool // the way is described by these alone
	}{
		{edge, "A hit", 10, without(of("limiter/"), all)},
		{limiter, "A limit decision", 4, of("limiter/", "edge/pipeline.go")},
		{limiter, "A decision that asks Redis", 2, without(decision, of("limiter/", "edge/pipeline.go"))},
		{follower, "A change is published", 10, without(applied, of("origin/follower/", "internal/changefeed/"))},
		{feed, "A change is applied", 4, without(hit, without(miss, without(published, of("internal/changefeed/", "cache/", "origin/apikey/"))))},
		{edge, "A miss", 16, without(hit, without(of("limiter/", "internal/changefeed/", "internal/fleet/"), all))},
	}
	for attempt := 1; ; attempt++ { // on a busy machine Redis is late, for which other files run
		ran := recordWays(t)
		var wrong []string
		for _, way := range ways {
			named := wayOf(t, way.in, way.name, way.most)
			for _, file := range slices.Sorted(maps.Keys(ran[way.name])) {
				eachTime := ran[way.name][file]-ran["nothing"][file] >= times*.9 // timers do less
				if eachTime && way.part(file) && !leftOut(file) && !slices.Contains(named, file) {
					wrong = append(wrong, fmt.Sprintf("%s: %s runs each time, and is not named", way.name, file))
				}
			}
			for _, file := range named {
				if strings.HasSuffix(file, ".go") && ran[way.name][file] < times/100 {
					wrong = append(wrong, fmt.Sprintf("%s: %s is named, and does not run", way.name, file))
				}
			}
		}
		if len(wrong) == 0 {
			return
		}
		t.Logf("attempt %d: %s", attempt, strings.Join(wrong, "; "))
		if attempt == 3 {
			t.Fatal("the ways through the code are not those of the package comments")
		}
	}
}

// leftOut is what a way need not name: what wires, counts, tells the time and moves bytes, and what a
// busy machine runs more often: the sweep of leases, and decisions while Redis is late.
var leftOut = of("cmd/", "metrics/", "internal/boottime/", "internal/rawconn/", "internal/redact/",
	"internal/sandbox/", "internal/tracing/", "origin/usage/")

func of(prefixes ...string) func(file string) bool {
	return func(file string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(file, p) })
	}
}

func all(string) bool { return true }

func without(these, of func(string) bool) func(string) bool {
	return func(file string) bool { return of(file) && !these(file) }
}

// wayOf reads the files of a way from the package comment in that file.
func wayOf(t *testing.T, in, name string, most int) (named []string) {
	t.Helper()
	_, section, ok := strings.Cut(contents(t, in), fmt.Sprintf("\n// # %s: at most %d files\n", name, most))
	if !ok {
		t.Fatalf("%s has no heading %q of at most %d files", in, name, most)
	}
	section = regexp.MustCompile(`(?m)^// #|^package `).Split(section, 2)[0]
	for _, line := range regexp.MustCompile(`(?m)^//\t(.*)$`).FindAllStringSubmatch(section, -1) {
		for _, file := range strings.Fields(line[1]) {
			if slices.Contains(named, file) {
				t.Errorf("%s is named twice", file)
			}
			if !isFile(file) {
				t.Errorf("%s does not exist: name the file that took over its part, or leave it out", file)
			}
			named = append(named, file)
		}
	}
	if len(named) < 2 || len(named) > most {
		t.Errorf("%d files are named; a way has 2 to %d", len(named), most)
	}
	return named
}

func isFile(name string) bool {
	_, err := os.Stat(filepath.Join("..", "..", "..", name))
	return err == nil
}

// times is how often each thing is done: far more often than what a node does by
// itself meanwhile.
const times = 300

// clients do it concurrently, so that the node does little by itself meanwhile.
const clients = 8

// recordWays returns how often the statements of each file ran, those most that ran
// most, while each thing was done so many times.
func recordWays(t *testing.T) map[string]map[string]float64 {
	program := buildCounted(t)
	database, redis := database(t), sandboxtest.Redis(t).Addr()
	workspace, leased := workspaceWithKey(t, database)
	var asking [clients]string // keys whose bursts are too small for a lease
	for i := range asking {
		asking[i] = newKeyFor(t, database, workspace, "--rate", "100000", "--burst", "10")
	}
	execute(t, database, `INSERT INTO items (workspace_id, id, name, type) VALUES ($1, gen_random_uuid(), 'a', 'GOODS')`, workspace)

	var n *testNode
	// until makes requests, at several connections, until so many responses have that
	// in Cache-Status.
	until := func(count int64, path func() string, key func(client int) string, status string) {
		var seen atomic.Int64
		var all sync.WaitGroup
		for client := range clients {
			all.Go(func() {
				for seen.Load() < count {
					a, err := n.try(http.MethodGet, path(), key(client))
					if err != nil {
						t.Error(err)
						return
					}
					if strings.Contains(a.Header.Get("Cache-Status"), status) {
						seen.Add(1)
					}
				}
			})
		}
		all.Wait()
	}
	list, theLeased := func() string { return "/v1/items" }, func(int) string { return leased }
	var searches atomic.Int64
	search := func() string { return fmt.Sprintf("/v1/items?search=%d", searches.Add(1)) }
	ran := map[string]map[string]float64{}
	for _, way := range []struct {
		name  string
		count int64
		do    func(count int64)
	}{
		{"nothing", times, func(int64) {}},
		{"A hit", times, func(count int64) { until(count, list, theLeased, "detail=memory") }},
		// The first leases of a node are small, so the first requests often wait for Redis.
		{"A limit decision", 5 * times, func(count int64) { until(count, list, theLeased, "detail=memory") }},
		{"A decision that asks Redis", times, func(count int64) {
			until(count, list, func(client int) string { return asking[client] }, "detail=memory")
		}},
		{"A miss", times, func(count int64) { until(count, search, theLeased, "fwd=uri-miss") }},
	} {
		var stop func() map[string]float64
		n, stop = startCounted(t, program, database, redis)
		until(1, list, theLeased, "detail=memory")
		way.do(way.count)
		ran[way.name] = stop()
		for file := range ran[way.name] {
			ran[way.name][file] *= times / float64(way.count)
		}
	}

	follower, stopFollower := startCounted(t, program, database, redis)
	within(t, patience, "the first node follows", func() bool { return follower.metric(t, "listedge_freshness_follower") == 1 })
	var stop func() map[string]float64
	n, stop = startCounted(t, program, database, redis)
	until(1, list, theLeased, "detail=memory")
	execute(t, database, fmt.Sprintf(`DO $$ BEGIN FOR n IN 1..%d LOOP
	UPDATE items SET name = 'change ' || n WHERE workspace_id = '%s';
	UPDATE api_keys SET name = 'change ' || n WHERE workspace_id = '%[2]s';
	COMMIT;
END LOOP; END $$`, times, workspace))
	last := fmt.Sprintf(`"change %d"`, times)
	within(t, patience, "the last change", func() bool {
		a, err := n.try(http.MethodGet, list(), leased)
		return err == nil && bytes.Contains(a.body, []byte(last))
	})
	ran["A change is applied"], ran["A change is published"] = stop(), stopFollower()
	return ran
}

// startCounted starts a node. stop ends it and returns how often the statements of each
// file ran.
func startCounted(t *testing.T, program, database, redis string) (n *testNode, stop func() map[string]float64) {
	counters := t.TempDir()
	n = launchProgram(t, program, []string{"GOCOVERDIR=" + counters}, database, append(lateProofs, "--redis-url", "redis://"+redis)...)
	within(t, patience, "followed: before that, no row of a page is kept", func() bool { return n.mode() == "followed" })
	return n, func() map[string]float64 {
		if code := n.stop(); code != exitFine {
			t.Fatalf("exit %d: %s", code, n.err.String())
		}
		return readCounters(t, counters)
	}
}

// buildCounted compiles the program so that it counts its statements. It writes the
// counters when it ends. The Makefile compiles with the same flags before the tests.
func buildCounted(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "listedge")
	err := compile(program, "-cover", "-covermode=atomic",
		"-coverpkg=listedge/cmd/...,listedge/edge,listedge/cache/...,listedge/limiter/...,listedge/metrics,listedge/origin/...,listedge/internal/...")
	must(err)
	return program
}

// readCounters returns, for each file, how often its statement ran that ran most.
func readCounters(t *testing.T, dir string) map[string]float64 {
	t.Helper()
	out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i", dir, "-o", "/dev/stdout").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ran := map[string]float64{}
	for _, block := range regexp.MustCompile(`(?m)^listedge/(.*):\S+ \d+ (\d+)$`).FindAllStringSubmatch(string(out), -1) {
		n, err := strconv.ParseFloat(block[2], 64)
		if err != nil {
			t.Fatal(block)
		}
		ran[block[1]] = max(ran[block[1]], n)
	}
	return ran
}
