package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"listedge/sandbox"
	"listedge/sandbox/sandboxtest"
)

// The oracle of freshness. One writer per workspace counts up in two rows of
// one transaction; readers on every node note what they are shown and when.
// An answer that does not say it is stale must not omit a commit that was
// acknowledged more than the bound before the request began.

const freshnessBound = 500 * time.Millisecond

// fleet is three nodes, as processes, on a Postgres and a Redis of their own.
type fleet struct {
	postgres *sandbox.Postgres
	redis    *sandbox.Redis
	url      string
	nodes    []*nodeProcess
	flags    []string
}

type nodeProcess struct {
	*testNode
	process *os.Process
	log     *output
	stopped bool
}

func startFleet(t *testing.T, nodes int, flags ...string) *fleet {
	t.Helper()
	f := &fleet{redis: sandboxtest.Redis(t), flags: flags}
	f.postgres, f.url = privateDatabase(t)
	for range nodes {
		f.nodes = append(f.nodes, f.start(t))
	}
	return f
}

func (f *fleet) start(t *testing.T) *nodeProcess {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := &nodeProcess{testNode: &testNode{}, log: &output{}}
	c := exec.Command(program, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--database-url", f.url,
		"--redis-url", f.redis.URL(), "--log-format", "json", "--drain", "50ms"}, f.flags...)...)
	c.Env = append(os.Environ(), beListedge+"=1")
	c.Stdout, c.Stderr = n.log, n.log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	n.process = c.Process
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	within(t, 30*time.Second, "listening", func() bool {
		for line := range strings.Lines(n.log.String()) {
			var entry struct{ Msg, Public, Admin string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
				n.url, n.admin = "http://"+entry.Public, "http://"+entry.Admin
				return true
			}
		}
		return false
	})
	n.awaitReady(t)
	return n
}

func (n *testNode) mode() string {
	r, err := http.Get(n.admin + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	var state struct{ Mode string }
	_ = json.NewDecoder(r.Body).Decode(&state)
	return state.Mode
}

// follower is the node that holds the slot.
func (f *fleet) follower(t *testing.T) (found *nodeProcess) {
	t.Helper()
	within(t, time.Minute, "somebody follows", func() bool {
		for _, n := range f.nodes {
			if !n.stopped && n.metric(t, "listedge_freshness_follower") == 1 {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

func (f *fleet) awaitFollowed(t *testing.T) {
	t.Helper()
	for _, n := range f.nodes {
		if !n.stopped {
			within(t, 2*time.Minute, "changes are followed", func() bool { return n.mode() == "followed" })
		}
	}
}

// history is what a workspace's writer did.
type history struct {
	workspace uuid.UUID
	key       string
	mu        sync.Mutex // guards all below
	began     []time.Time
	committed []time.Time // zero while not known to be
}

func (h *history) last() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.committed) - 1
}

// oracle runs writers and readers and collects what is wrong.
type oracle struct {
	fleet     *fleet
	histories []*history

	mu      sync.Mutex // guards all below
	worst   time.Duration
	answers map[string]int // by Cache-Status
	wrong   []string
}

const watchedWorkspaces = 4

func newOracle(t *testing.T, f *fleet) *oracle {
	t.Helper()
	o := &oracle{fleet: f, answers: map[string]int{}}
	for range watchedWorkspaces {
		workspace, key := workspaceWithKey(t, f.url)
		execute(t, f.url, "INSERT INTO items (workspace_id, name, stock_on_hand) VALUES ($1, 'a', 0), ($1, 'b', 0)", workspace)
		now := time.Now()
		o.histories = append(o.histories, &history{workspace: uuid.MustParse(workspace), key: key, began: []time.Time{now}, committed: []time.Time{now}})
	}
	return o
}

// write counts up until ctx ends, at random pauses up to pause.
func (o *oracle) write(ctx context.Context, h *history, pause time.Duration) {
	var conn *pgx.Conn
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/10 + rand.N(pause)):
		}
		if conn == nil || conn.IsClosed() {
			calling, cancel := context.WithTimeout(ctx, time.Second)
			conn, _ = pgx.Connect(calling, o.fleet.url)
			cancel()
			if conn == nil {
				continue
			}
		}
		o.step(conn, h)
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

// step is one transaction. One whose commit failed may have happened: then the
// database is asked.
func (o *oracle) step(conn *pgx.Conn, h *history) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	next := h.last() + 1
	h.mu.Lock()
	h.began, h.committed = append(h.began, time.Now()), append(h.committed, time.Time{})
	h.mu.Unlock()
	for {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE items SET stock_on_hand = $2 WHERE workspace_id = $1", h.workspace, strconv.Itoa(next))
			return err
		})
		if err == nil || ctx.Err() != nil {
			break
		}
		for ctx.Err() == nil { // setting the same value again is harmless
			time.Sleep(20 * time.Millisecond)
			if again, err := pgx.Connect(ctx, o.fleet.url); err == nil {
				*conn = *again
				break
			}
		}
	}
	h.mu.Lock()
	h.committed[next] = time.Now()
	h.mu.Unlock()
}

// read asks one node over and over.
func (o *oracle) read(ctx context.Context, n *nodeProcess, h *history) {
	client := &http.Client{Timeout: 10 * time.Second}
	for i := 0; ctx.Err() == nil; i++ {
		r, _ := http.NewRequest("GET", n.url+"/v1/items?limit=50", nil)
		r.Header.Set("X-API-Key", h.key)
		began := time.Now()
		response, err := client.Do(r)
		if err != nil {
			o.count("no answer")
			time.Sleep(10 * time.Millisecond)
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		ended := time.Now()
		if err != nil || response.StatusCode != 200 {
			o.count(response.Status)
			time.Sleep(5 * time.Millisecond)
			continue
		}
		o.judge(h, response.Header.Get("Cache-Status"), body, began, ended)
		time.Sleep(rand.N(4 * time.Millisecond))
	}
}

func (o *oracle) count(what string) {
	o.mu.Lock()
	o.answers[what]++
	o.mu.Unlock()
}

// judge checks one answer.
func (o *oracle) judge(h *history, status string, body []byte, began, ended time.Time) {
	o.count(status)
	var p page
	if err := json.Unmarshal(body, &p); err != nil || len(p.Data) != 2 {
		o.accuse("%d rows: %s %v", len(p.Data), body, err)
		return
	}
	a, b := p.Data[0]["stockOnHand"], p.Data[1]["stockOnHand"]
	if a != b {
		o.accuse("half a transaction: %v and %v (%s)", a, b, status)
	}
	v, _ := strconv.Atoi(a.(string))
	h.mu.Lock()
	defer h.mu.Unlock()
	if v >= len(h.began) || h.began[v].After(ended) {
		o.accuse("from the future: %d", v)
		return
	}
	if strings.Contains(status, "stale-if-error") || v+1 >= len(h.committed) || h.committed[v+1].IsZero() {
		return
	}
	if stale := began.Sub(h.committed[v+1]); stale > 0 {
		o.mu.Lock()
		o.worst = max(o.worst, stale)
		o.mu.Unlock()
		if stale > freshnessBound {
			o.accuse("%s after the commit of %d, %d was shown as fresh (%s)", stale, v+1, v, status)
		}
	}
}

func (o *oracle) accuse(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.wrong) < 20 {
		o.wrong = append(o.wrong, fmt.Sprintf(format, args...))
	}
}

// run writes and reads for d while fault happens, then is quiet, and then
// every node must show the last value.
func (o *oracle) run(t *testing.T, name string, d time.Duration, fault func()) {
	t.Helper()
	o.mu.Lock()
	o.worst, o.answers, o.wrong = 0, map[string]int{}, nil
	o.mu.Unlock()
	writing, stopWriting := context.WithCancel(context.Background())
	reading, stopReading := context.WithCancel(context.Background())
	var writers, readers sync.WaitGroup
	for i, h := range o.histories {
		writers.Go(func() {
			o.write(writing, h, []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 2 * time.Second}[i%4])
		})
		for _, n := range o.fleet.nodes {
			if !n.stopped {
				readers.Go(func() { o.read(reading, n, h) })
			}
		}
	}
	ends := time.After(d)
	fault()
	<-ends
	stopWriting()
	writers.Wait()
	time.Sleep(freshnessBound)
	for _, h := range o.histories {
		want := fmt.Sprintf(`"stockOnHand":"%d"`, h.last())
		for i, n := range o.fleet.nodes {
			if n.stopped {
				continue
			}
			a, err := n.try("GET", "/v1/items?limit=50", h.key)
			if err != nil || a.StatusCode != 200 || strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error") {
				continue // says so
			}
			if !strings.Contains(string(a.body), want) {
				o.accuse("after a quiet while node %d does not show %s (%s)", i, want, a.Header.Get("Cache-Status"))
			}
		}
	}
	stopReading()
	readers.Wait()
	hits, all := 0, 0
	for status, n := range o.answers {
		if strings.HasPrefix(status, "listedge; hit") {
			hits += n
		}
		all += n
	}
	t.Logf("%-28s worst %8s  hits %5.1f %% of %d  %v", name, o.worst.Round(time.Millisecond), 100*float64(hits)/float64(max(all, 1)), all, o.answers)
	for _, w := range o.wrong {
		t.Errorf("%s: %s", name, w)
	}
	if all < 100 {
		t.Errorf("%s: only %d answers", name, all)
	}
}

// commitsWait has commits wait for a standby that is not there, again and
// again: they are in the WAL, and published, long before anybody can see them.
func (f *fleet) commitsWait(t *testing.T, d time.Duration) {
	t.Helper()
	conn := connect(t, f.url)
	set := func(standbys string) {
		for _, sql := range []string{"SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = '" + standbys + "'", "SELECT pg_reload_conf()"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Error(err)
			}
		}
	}
	defer set("")
	for ends := time.Now().Add(d); time.Now().Before(ends); time.Sleep(200 * time.Millisecond) {
		set("absent")
		time.Sleep(200 * time.Millisecond)
		set("")
	}
}

// TestFreshnessInShort is the faults that tell a wrong rule from a right one
// soonest: mutations_test.go runs it.
func TestFreshnessInShort(t *testing.T) {
	f := startFleet(t, 2)
	f.awaitFollowed(t)
	o := newOracle(t, f)
	o.run(t, "commits wait for a standby", 5*time.Second, func() { f.commitsWait(t, 4*time.Second) })
	o.run(t, "Redis frozen", 4*time.Second, func() {
		time.Sleep(500 * time.Millisecond)
		_ = f.redis.Freeze()
		time.Sleep(2500 * time.Millisecond)
		_ = f.redis.Thaw()
	})
}

// TestFreshnessOfLostCommits: what a crash takes back is not shown any more. A
// commit that is not waited for is read by one request, and Postgres crashes
// before its WAL is flushed; should it have been, then again.
func TestFreshnessOfLostCommits(t *testing.T) {
	f := startFleet(t, 2)
	for attempt := 1; attempt <= 20; attempt++ {
		f.awaitFollowed(t)
		workspace, key := workspaceWithKey(t, f.url)
		execute(t, f.url, "INSERT INTO items (workspace_id, name, stock_on_hand) VALUES ($1, 'a', 1)", workspace)
		n := f.nodes[attempt%len(f.nodes)]
		// fresh asks until the answer does not say that it is stale.
		fresh := func(query string) (body string) {
			within(t, 20*time.Second, "a fresh page", func() bool {
				a, err := n.try("GET", "/v1/items?limit="+query, key)
				if err != nil || a.StatusCode != 200 || strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error") {
					return false
				}
				body = string(a.body)
				return true
			})
			return body
		}
		const old, lost = `"stockOnHand":"1"`, `"stockOnHand":"2"`
		if body := fresh("10"); !strings.Contains(body, old) {
			t.Fatal(body)
		}
		conn := connect(t, f.url)
		if _, err := conn.Exec(t.Context(), "SET synchronous_commit = off"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "UPDATE items SET stock_on_hand = 2 WHERE workspace_id = $1", workspace); err != nil {
			t.Fatal(err)
		}
		shown := strings.Contains(fresh("20"), lost)
		_ = f.postgres.Kill(syscall.SIGQUIT)
		if err := f.postgres.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
		var value int
		if err := connect(t, f.url).QueryRow(t.Context(), "SELECT stock_on_hand FROM items WHERE workspace_id = $1", workspace).Scan(&value); err != nil {
			t.Fatal(err)
		}
		if !shown || value != 1 {
			continue // it was not lost
		}
		time.Sleep(freshnessBound)
		f.awaitFollowed(t)
		if body := fresh("20"); !strings.Contains(body, old) {
			t.Errorf("attempt %d: a commit that was lost is shown still: %s", attempt, body)
		}
		return
	}
	t.Error("no commit was lost")
}

func TestFreshnessUnderFaults(t *testing.T) {
	f := startFleet(t, 3)
	f.awaitFollowed(t)
	o := newOracle(t, f)
	client := redis.NewClient(&redis.Options{Addr: f.redis.Addr()})
	defer client.Close()

	o.run(t, "no fault", 5*time.Second, func() {})
	o.run(t, "a long write transaction", 4*time.Second, func() {
		conn := connect(t, f.url)
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "INSERT INTO items (workspace_id, name) VALUES (gen_random_uuid(), 'open')"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		_ = tx.Rollback(context.Background())
	})
	o.run(t, "commits wait for a standby", 4*time.Second, func() { f.commitsWait(t, 3*time.Second) })
	o.run(t, "ALTER TABLE with a rewrite", 3*time.Second, func() {
		time.Sleep(time.Second)
		execute(t, f.url, "ALTER TABLE items ALTER COLUMN unit TYPE varchar(100)")
		execute(t, f.url, "ALTER TABLE items ADD COLUMN filler int DEFAULT (random() * 1000)::int")
	})
	o.run(t, "Redis flushed", 4*time.Second, func() {
		time.Sleep(time.Second)
		client.FlushAll(t.Context())
	})
	o.run(t, "Redis frozen", 6*time.Second, func() {
		time.Sleep(time.Second)
		_ = f.redis.Freeze()
		time.Sleep(2 * time.Second)
		_ = f.redis.Thaw()
	})
	o.run(t, "Redis restarted empty", 6*time.Second, func() {
		time.Sleep(time.Second)
		_ = f.redis.Kill()
		time.Sleep(time.Second)
		if err := f.redis.Restart(context.Background()); err != nil {
			t.Error(err)
		}
	})
	f.awaitFollowed(t)
	o.run(t, "one backend killed", 6*time.Second, func() {
		time.Sleep(time.Second)
		conn := connect(t, f.url)
		var pid int
		if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // all other backends are restarted with it
	})
	f.awaitFollowed(t)
	o.run(t, "Postgres crashed", 8*time.Second, func() {
		time.Sleep(time.Second)
		_ = f.postgres.Kill(syscall.SIGQUIT)
		time.Sleep(time.Second)
		if err := f.postgres.Restart(context.Background()); err != nil {
			t.Error(err)
		}
	})
	f.awaitFollowed(t)
	o.run(t, "follower SIGSTOPped", 8*time.Second, func() {
		time.Sleep(time.Second)
		n := f.follower(t)
		_ = n.process.Signal(syscall.SIGSTOP)
		time.Sleep(4 * time.Second)
		_ = n.process.Signal(syscall.SIGCONT)
	})
	f.awaitFollowed(t)
	o.run(t, "follower SIGKILLed", 5*time.Second, func() {
		time.Sleep(time.Second)
		n := f.follower(t)
		n.stopped = true
		_ = n.process.Kill()
		began := time.Now()
		f.follower(t)
		t.Logf("followed again after %s", time.Since(began).Round(time.Millisecond))
	})
}
