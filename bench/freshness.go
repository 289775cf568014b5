package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"listedge/internal/sandbox"
)

const (
	visibleCommits = 300
	visiblePause   = 20 * time.Millisecond
	writerRounds   = 4
	writerTime     = 4 * time.Second
)

// measureFreshness prints how soon commits are shown, and what following changes
// costs the writers.
func measureFreshness(ctx context.Context, s *subject, r *report) error {
	for _, nodes := range []int{1, 3} {
		f := must1(startFollowing(ctx, s, nodes))
		delays, err := visibleDelays(ctx, s, f)
		f.end()
		if err != nil {
			return err
		}
		what := strings.Replace(fmt.Sprintf("commit to visible, %d nodes, ms: p50, p99, worst", nodes), "1 nodes", "1 node", 1)
		p99 := percentile(delays, 0.99)
		r.aim(what, fmt.Sprintf("%.1f, %.1f, %.1f", percentile(delays, 0.5), p99, percentile(delays, 1)), "p99 ≤ 10", p99 <= 10)
	}
	return measureWriters(ctx, s, r)
}

// followingFleet is nodes that follow the subject's database.
type followingFleet struct {
	redis *sandbox.Redis // nil on a single node
	nodes []*server
}

// startFollowing starts a single node without Redis, or a fleet on a private one.
func startFollowing(ctx context.Context, s *subject, nodes int) (*followingFleet, error) {
	if nodes > 1 {
		return startFleet(ctx, s, nodes)
	}
	node, err := s.startFollower(ctx)
	return &followingFleet{nodes: []*server{node}}, err
}

// startFleet starts nodes on a private Redis.
func startFleet(ctx context.Context, s *subject, nodes int) (f *followingFleet, err error) {
	dir, err := os.MkdirTemp(filepath.Dir(s.program), "redis-")
	if err != nil {
		return nil, err
	}
	f = &followingFleet{}
	if f.redis, err = sandbox.StartRedis(ctx, dir); err != nil {
		return nil, err
	}
	for range nodes {
		n, err := s.startNode("--redis-url", "redis://"+f.redis.Addr())
		if err != nil {
			f.end()
			return nil, err
		}
		f.nodes = append(f.nodes, n)
	}
	for _, n := range f.nodes {
		if err := n.awaitMode(ctx, "followed"); err != nil {
			f.end()
			return nil, err
		}
	}
	return f, nil
}

func (f *followingFleet) end() {
	for _, n := range f.nodes {
		n.end()
	}
	if f.redis != nil {
		_ = f.redis.Stop()
	}
}

// awaitMode waits until the node is ready and keeps its pages fresh in this mode of /readyz.
func (s *server) awaitMode(ctx context.Context, mode string) error {
	var body []byte
	for range 20_000 {
		if r, err := http.Get("http://" + s.admin + "/readyz"); err == nil {
			body, _ = io.ReadAll(r.Body)
			r.Body.Close()
			if r.StatusCode == http.StatusOK && bytes.Contains(body, []byte(mode)) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return fmt.Errorf("not %s in time: %s", mode, body)
}

// smallWorkspace is one with one item, and a key.
func smallWorkspace(ctx context.Context, s *subject) (workspace uuid.UUID, key string, err error) {
	w, err := s.admin.CreateWorkspace(ctx, "bench", nil, nil, nil, "")
	if err != nil {
		return workspace, "", err
	}
	if key, err = s.newKey(ctx, w.ID); err != nil {
		return workspace, "", err
	}
	_, err = s.db.Exec(ctx, "INSERT INTO items (workspace_id, name, stock_on_hand) VALUES ($1, 'counter', 0)", w.ID)
	return w.ID, key, err
}

const countUp = "UPDATE items SET stock_on_hand = $2 WHERE workspace_id = $1"

func shown(n int) []byte { return []byte(`"stockOnHand":"` + strconv.Itoa(n) + `"`) }

// visibleDelays commits, and asks each node without pause until it shows the
// commit. A delay is how long after the commit was acknowledged the first
// request began that was shown it.
func visibleDelays(ctx context.Context, s *subject, f *followingFleet) (delays []time.Duration, err error) {
	workspace, key, err := smallWorkspace(ctx, s)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // guards delays
	for n := 1; n <= visibleCommits; n++ {
		var committed atomic.Pointer[time.Time]
		var pollers errgroup.Group
		for _, node := range f.nodes {
			pollers.Go(func() error {
				c := node.client(key)
				for ctx.Err() == nil {
					began := time.Now()
					body, _, err := c.get(itemsPath(10), "identity")
					if err != nil {
						return err
					}
					if bytes.Contains(body, shown(n)) {
						delay := time.Duration(0)
						if at := committed.Load(); at != nil && began.After(*at) {
							delay = began.Sub(*at)
						}
						mu.Lock()
						delays = append(delays, delay)
						mu.Unlock()
						return nil
					}
				}
				return ctx.Err()
			})
		}
		time.Sleep(visiblePause)
		_, err := s.db.Exec(ctx, countUp, workspace, strconv.Itoa(n))
		now := time.Now()
		committed.Store(&now)
		if err := errors.Join(pollers.Wait(), err); err != nil {
			return nil, err
		}
	}
	return delays, ctx.Err()
}

// measureWriters compares what pgbench commits while a node follows with what
// it commits while none does, in turns. Both share the machine with the node.
func measureWriters(ctx context.Context, s *subject, r *report) error {
	script := filepath.Join(filepath.Dir(s.program), "writers.sql")
	const statement = `UPDATE items SET stock_on_hand = stock_on_hand + 1 WHERE (workspace_id, id) IN
	(SELECT workspace_id, id FROM items WHERE workspace_id = '%s' AND id >= gen_random_uuid() ORDER BY id LIMIT 1);`
	must(os.WriteFile(script, []byte(strings.ReplaceAll(fmt.Sprintf(statement, s.workspace), "\n", " ")+"\n"), 0o644))
	var with, without float64
	for range writerRounds {
		without += must1(s.pgbench(ctx, script))
		f := must1(startFollowing(ctx, s, 1))
		tps, err := s.pgbench(ctx, script)
		f.end()
		if err != nil {
			return err
		}
		with += tps
		must(s.dropSlot(ctx))
	}
	r.ratio("commits/s of 4 writers while a node follows, against none (pgbench)", "%.0f", with/writerRounds, without/writerRounds, 0)
	return ctx.Err()
}

func (s *subject) dropSlot(ctx context.Context) (err error) {
	const slots = " FROM pg_replication_slots WHERE database = current_database()"
	for range 500 { // the server lets go of it a little after the node does
		if _, err = s.db.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name)"+slots); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

func (s *subject) pgbench(ctx context.Context, script string) (tps float64, err error) {
	c := exec.CommandContext(ctx, filepath.Join(s.postgres.Bin, "pgbench"), "--no-vacuum", "--file", script, "--client", "4", "--jobs", "1",
		"--protocol", "prepared", "--time", strconv.Itoa(int(writerTime.Seconds())), s.url)
	out, err := c.Output()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if value, ok := strings.CutPrefix(line, "tps = "); ok {
			number, _, _ := strings.Cut(value, " ")
			return strconv.ParseFloat(number, 64)
		}
	}
	return 0, fmt.Errorf("pgbench says no tps: %s", out)
}
