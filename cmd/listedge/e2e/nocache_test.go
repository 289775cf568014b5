package e2e

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
)

// Requests with Cache-Control: no-cache, on nodes with standbys, while things break. What is written to some rows and read of
// them is a history, which must be linearizable: each row is a register.

// access is what an operation of a history does: it reads a register, or writes a value to it.
type access struct {
	register int
	writes   bool
	value    int // that is written
}

// rowsAsRegisters says what a history may be: a read returns the last value.
var rowsAsRegisters = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[int][]porcupine.Operation{}
		for _, o := range history {
			parts[o.Input.(access).register] = append(parts[o.Input.(access).register], o)
		}
		return slices.Collect(maps.Values(parts))
	},
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		if in := input.(access); in.writes {
			return true, in.value
		}
		return output == state, state
	},
}

// rowHistory is what was written to registers of a fleet, and read of them.
type rowHistory struct {
	fleet *fleet
	conn  *pgx.Conn
	began time.Time

	mu         sync.Mutex // guards all below
	operations []porcupine.Operation
}

// register is the rows of a workspace, which all have the value.
type register struct {
	*rowHistory
	number         int
	workspace, key string
	last           int // that was written, or may have been
}

func newRegisters(t *testing.T, f *fleet, n int) (all []*register) {
	h := &rowHistory{fleet: f, conn: connect(t, f.url), began: time.Now()}
	for i := range n {
		r := &register{rowHistory: h, number: i}
		r.workspace, r.key = workspaceWithKey(t, f.url)
		execute(t, f.url, "INSERT INTO items (workspace_id, name, stock_on_hand) SELECT $1, 'Item ' || g, 0 FROM generate_series(1, 20) g", r.workspace)
		all = append(all, r)
	}
	return all
}

// add notes an operation that began then, and ends now; not known whether it happened, it may still do so.
func (h *rowHistory) add(a access, output any, began time.Time, known bool) {
	o := porcupine.Operation{Input: a, Output: output, Call: int64(began.Sub(h.began)), Return: math.MaxInt64}
	if known {
		o.Return = int64(time.Since(h.began))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, o)
}

// write writes the next value. A write that fails may have happened, so there is another one until one is acknowledged.
func (r *register) write(t *testing.T) (value int) {
	within(t, patience, "a write", func() bool {
		r.last++
		began := time.Now()
		_, err := r.conn.Exec(t.Context(), "UPDATE items SET stock_on_hand = $2 WHERE workspace_id = $1", r.workspace, r.last)
		r.add(access{r.number, true, r.last}, nil, began, err == nil)
		return err == nil
	})
	return r.last
}

var stock = regexp.MustCompile(`"stockOnHand":"(\d+)"`)

// read reads with no-cache; false = there was no page, as while something is broken.
func (r *register) read(n *testNode) (value int, status string, ok bool) {
	began := time.Now()
	a, err := n.try("GET", "/v1/items", r.key, "Cache-Control: no-cache")
	if err != nil || a.StatusCode != 200 {
		return 0, "", false
	}
	all := stock.FindAllSubmatch(a.body, -1)
	if len(all) != 20 {
		return 0, "", false
	}
	value, _ = strconv.Atoi(string(all[0][1]))
	for _, other := range all { // the rows of one statement
		if string(other[1]) != string(all[0][1]) {
			value = -1
		}
	}
	r.add(access{register: r.number}, value, began, true)
	return value, cacheStatus(a.Header), true
}

// judge checks the history.
func (h *rowHistory) judge(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !porcupine.CheckOperations(rowsAsRegisters, h.operations) {
		t.Error("what was read is no linear history of what was written")
	}
	t.Logf("%d reads and writes", len(h.operations))
}

// readsMeanwhile reads on all nodes until what it returns is called.
func readsMeanwhile(registers []*register) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				r := registers[rand.IntN(len(registers))]
				if _, _, ok := r.read(r.fleet.nodes[rand.IntN(len(r.fleet.nodes))]); !ok {
					pause(20 * time.Millisecond)
				}
			}
		})
	}
	return func() { cancel(); readers.Wait() }
}

// A read that began after a write has ended, or after a read of its value, shows it; what may have been written may be shown.
func TestHistoriesThatAreLinearizable(t *testing.T) {
	write := func(value int, call, end int64) porcupine.Operation {
		return porcupine.Operation{Input: access{0, true, value}, Call: call, Return: end}
	}
	read := func(value int, call, end int64) porcupine.Operation {
		return porcupine.Operation{Input: access{}, Output: value, Call: call, Return: end}
	}
	for name, c := range map[string]struct {
		history []porcupine.Operation
		want    bool
	}{
		"after a write":                {[]porcupine.Operation{write(1, 1, 2), read(1, 3, 4)}, true},
		"before it":                    {[]porcupine.Operation{write(1, 1, 2), read(0, 3, 4)}, false},
		"meanwhile":                    {[]porcupine.Operation{write(1, 1, 4), read(0, 2, 3)}, true},
		"a value goes back":            {[]porcupine.Operation{write(1, 1, 9), read(1, 2, 3), read(0, 4, 5)}, false},
		"a write that may have been":   {[]porcupine.Operation{write(1, 1, math.MaxInt64), read(0, 2, 3), read(1, 4, 5)}, true},
		"a value that nobody wrote":    {[]porcupine.Operation{write(1, 1, 2), read(-1, 3, 4)}, false},
		"a value of another register":  {[]porcupine.Operation{{Input: access{1, true, 1}, Call: 1, Return: 2}, read(1, 3, 4)}, false},
		"registers beside one another": {[]porcupine.Operation{{Input: access{1, true, 1}, Call: 1, Return: 2}, read(0, 3, 4)}, true},
	} {
		if got := porcupine.CheckOperations(rowsAsRegisters, c.history); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Each write is seen by the read that follows it, on each node, also while nodes and Redis break.
func TestNoCacheReadsWhatWasWritten(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	f.awaitFollowed(t)
	registers := newRegisters(t, f, 3)
	follower := f.follower(t)
	for _, phase := range []struct {
		name    string
		happens func()
		ends    func()
	}{
		{"quiet", func() {}, func() {}},
		{"Redis frozen", func() { must(f.redis.Freeze()) }, func() { must(f.redis.Thaw()) }},
		{"Redis killed and restarted", func() { must(f.redis.Kill()) }, func() { must(f.redis.Restart(context.Background())) }},
		{"the follower killed", func() { follower.stopped = true; follower.signal(syscall.SIGKILL) }, func() {}},
	} {
		t.Run(phase.name, func(t *testing.T) {
			stop := readsMeanwhile(registers)
			defer stop()
			const writes = 60
			for i := range writes {
				switch i {
				case writes / 3:
					phase.happens()
				case 2 * writes / 3:
					phase.ends()
				}
				w := registers[i%len(registers)]
				value := w.write(t)
				for _, n := range f.nodes {
					if n.stopped {
						continue
					}
					within(t, patience, "a page", func() bool {
						got, status, ok := w.read(n)
						if ok && got < value {
							t.Errorf("write %d was not seen: %d, %s", value, got, status)
						}
						return ok
					})
				}
			}
			f.awaitFollowed(t)
		})
		registers[0].judge(t)
	}
}

// How long it takes from a write until a page with it: nobody else writes or reads.
func TestNoCacheReadsSoon(t *testing.T) {
	t.Parallel()
	f := fleetOf(t)
	f.startNodes(t, 3)
	f.awaitFollowed(t)
	w := newRegisters(t, f, 1)[0]
	for _, n := range f.nodes {
		n.first(t, "/v1/items", w.key)
	}
	var took []time.Duration
	rows := 0
	for i := range 120 {
		value, written := w.write(t), time.Now()
		got, status, ok := w.read(f.nodes[i%3])
		if !ok || got != value {
			t.Fatalf("%d, %s, want %d", got, status, value)
		}
		if status == "listedge; hit; detail=memory" {
			rows++
		}
		took = append(took, time.Since(written))
		pause(40 * time.Millisecond)
	}
	slices.Sort(took)
	t.Logf("from a write to a page with it: p50 %s, p99 %s; %d of %d from rows", took[len(took)/2].Round(time.Millisecond),
		took[len(took)*99/100].Round(time.Millisecond), rows, len(took))
	w.judge(t)
}

// A page that rows have costs no query, and a 304 no token, however many ask with no-cache.
func TestNoCacheCostsWhatAHitCosts(t *testing.T) {
	t.Parallel()
	f := fleetOf(t, "--freshness-bound", "1m") // so that a proof comes in time on a busy machine
	f.startNodes(t, 2)
	f.awaitFollowed(t)
	w := newRegisters(t, f, 1)[0]
	for _, n := range f.nodes {
		n.awaitFollowed(t)
		poor := newKeyFor(t, f.url, w.workspace, "--rate", "0.001", "--burst", fmt.Sprint(tokens))
		etag := n.first(t, "/v1/items", w.key).Header.Get("ETag")
		queries := n.metric(t, "listedge_origin_fetches_total")
		for range 3 * tokens { // as a browser's fetch, which sends no-cache with a condition
			a := n.get(t, "/v1/items", poor, "If-None-Match: "+etag, "Cache-Control: no-cache", "Pragma: no-cache")
			if a.StatusCode != 304 || cacheStatus(a.Header) != "listedge; hit; detail=memory" {
				t.Fatalf("%s, %s", a.Status, cacheStatus(a.Header))
			}
		}
		const requests, atOnce = 4000, 100
		var other atomic.Int64
		var clients sync.WaitGroup
		began := time.Now()
		for range atOnce {
			clients.Go(func() {
				for range requests / atOnce {
					a, err := n.try("GET", "/v1/items", w.key, "Cache-Control: no-cache", "If-None-Match: "+etag)
					if err != nil || a.StatusCode != 304 {
						other.Add(1)
					}
				}
			})
		}
		clients.Wait()
		t.Logf("%.0f requests a second", requests/time.Since(began).Seconds())
		if got := n.metric(t, "listedge_origin_fetches_total"); got != queries || other.Load() != 0 {
			t.Errorf("%v queries, %d other answers", got-queries, other.Load())
		}
		if got := n.metric(t, "listedge_cache_proven_pages_total"); got < requests+3*tokens {
			t.Errorf("%v pages were proven", got)
		}
	}
}
