package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Requests with Cache-Control: no-cache, on nodes with standbys, while things break. One writer counts a row up. So the
// history of reads is linearizable if each shows a value that was not older than the last write that was acknowledged, or
// the last read that had ended, before it began, and that was written before it ended.

// read is one answer to a request with no-cache.
type read struct {
	began, ended time.Time
	value        int
}

// register is a row that one writer counts up, and what was read of it.
type register struct {
	fleet          *fleet
	workspace, key string
	conn           *pgx.Conn

	mu           sync.Mutex // guards all below
	begun, acked []time.Time
	reads        []read
}

func newRegister(t *testing.T, f *fleet) *register {
	w := &register{fleet: f, begun: make([]time.Time, 1), acked: make([]time.Time, 1)}
	w.workspace, w.key = workspaceWithKey(t, f.url)
	execute(t, f.url, "INSERT INTO items (workspace_id, name, stock_on_hand) SELECT $1, 'Item ' || g, 0 FROM generate_series(1, 20) g", w.workspace)
	w.conn = connect(t, f.url)
	return w
}

// write counts up. A write that fails may have happened, so there is another one until one is acknowledged.
func (w *register) write(t *testing.T) (value int) {
	within(t, patience, "a write", func() bool {
		w.mu.Lock()
		value = len(w.begun)
		w.begun, w.acked = append(w.begun, time.Now()), append(w.acked, time.Time{})
		w.mu.Unlock()
		_, err := w.conn.Exec(t.Context(), "UPDATE items SET stock_on_hand = $2 WHERE workspace_id = $1", w.workspace, value)
		w.mu.Lock()
		defer w.mu.Unlock()
		if err == nil {
			w.acked[value] = time.Now()
		}
		return err == nil
	})
	return value
}

var stock = regexp.MustCompile(`"stockOnHand":"(\d+)"`)

// read reads with no-cache; false = there was no page, as while something is broken.
func (w *register) read(n *testNode) (r read, status string, ok bool) {
	r.began = time.Now()
	a, err := n.try("GET", "/v1/items", w.key, "Cache-Control: no-cache")
	if err != nil || a.StatusCode != 200 {
		return r, status, false
	}
	all := stock.FindAllSubmatch(a.body, -1)
	if len(all) != 20 {
		return r, status, false
	}
	r.ended = time.Now()
	r.value, _ = strconv.Atoi(string(all[0][1]))
	for _, other := range all { // the rows of one statement
		if string(other[1]) != string(all[0][1]) {
			r.value = -1
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads = append(w.reads, r)
	return r, cacheStatus(a.Header), true
}

// judge checks the history.
func (w *register) judge(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	reads := slices.Clone(w.reads)
	slices.SortFunc(reads, func(a, b read) int { return a.began.Compare(b.began) })
	ended := slices.Clone(reads)
	slices.SortFunc(ended, func(a, b read) int { return a.ended.Compare(b.ended) })
	least, value := 0, 0
	for _, r := range reads {
		for len(ended) > 0 && ended[0].ended.Before(r.began) {
			least, ended = max(least, ended[0].value), ended[1:]
		}
		for value+1 < len(w.acked) && (w.acked[value+1].IsZero() || w.acked[value+1].Before(r.began)) {
			value++
			if !w.acked[value].IsZero() {
				least = max(least, value)
			}
		}
		if r.value < least || r.value >= len(w.begun) || w.begun[r.value].After(r.ended) {
			t.Errorf("a read from %s to %s shows %d, where %d was known", r.began.Format("05.000"), r.ended.Format("05.000"), r.value, least)
		}
	}
	t.Logf("%d writes, %d reads", len(w.begun)-1, len(reads))
}

// readsMeanwhile reads on all nodes until what it returns is called.
func (w *register) readsMeanwhile() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				if _, _, ok := w.read(w.fleet.nodes[rand.IntN(len(w.fleet.nodes))]); !ok {
					pause(20 * time.Millisecond)
				}
			}
		})
	}
	return func() { cancel(); readers.Wait() }
}

// Each write is seen by the read that follows it, on each node, also while nodes and Redis break.
func TestNoCacheReadsWhatWasWritten(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	f.awaitFollowed(t)
	w := newRegister(t, f)
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
			stop := w.readsMeanwhile()
			defer stop()
			const writes = 60
			for i := range writes {
				switch i {
				case writes / 3:
					phase.happens()
				case 2 * writes / 3:
					phase.ends()
				}
				value := w.write(t)
				for _, n := range f.nodes {
					if n.stopped {
						continue
					}
					within(t, patience, "a page", func() bool {
						r, status, ok := w.read(n)
						if ok && r.value < value {
							t.Errorf("write %d was not seen: %d, %s", value, r.value, status)
						}
						return ok
					})
				}
			}
			f.awaitFollowed(t)
		})
		w.judge(t)
	}
}

// How long it takes from a write until a page with it: nobody else writes or reads.
func TestNoCacheReadsSoon(t *testing.T) {
	t.Parallel()
	f := fleetOf(t)
	f.startNodes(t, 3)
	f.awaitFollowed(t)
	w := newRegister(t, f)
	for _, n := range f.nodes {
		n.first(t, "/v1/items", w.key)
	}
	var took []time.Duration
	rows := 0
	for i := range 120 {
		value := w.write(t)
		r, status, ok := w.read(f.nodes[i%3])
		if !ok || r.value != value {
			t.Fatalf("%d, %s, want %d", r.value, status, value)
		}
		if status == "listedge; hit; detail=memory" {
			rows++
		}
		w.mu.Lock()
		took = append(took, r.ended.Sub(w.acked[value]))
		w.mu.Unlock()
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
	w := newRegister(t, f)
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
		const requests = 2000
		var other atomic.Int64
		var clients sync.WaitGroup
		began := time.Now()
		for range 50 {
			clients.Go(func() {
				for range requests / 50 {
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
