package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

const (
	fleetNodes   = 8
	fleetPages   = 4 // each of a workspace of its own
	fleetReaders = 16
	fleetPause   = 10 * time.Millisecond // of a reader
	fleetWrites  = 5                     // a second, to each page
	fleetTime    = 8 * time.Second
	fleetRounds  = 2
)

// counts are what a fleet did and what it sent to its servers, since its start or in a span.
type counts map[string]float64

// add adds what was counted between before and now.
func (c counts) add(before, now counts) {
	for name := range now {
		c[name] += now[name] - before[name]
	}
}

// measureFleet prints what eight nodes cost under load, and idle.
func measureFleet(ctx context.Context, s *subject, r *report) error {
	return errors.Join(measureBusy(ctx, s, r), measureIdle(ctx, s, r))
}

// measureBusy compares eight nodes behind HAProxy with one: the load on Postgres and Redis while
// clients request a few hot pages whose rows change.
func measureBusy(ctx context.Context, s *subject, r *report) error {
	if _, err := exec.LookPath("haproxy"); err != nil {
		r.leaveOut("8 nodes behind HAProxy: haproxy is not installed")
		return nil
	}
	sizes := [...]int{1, fleetNodes}
	busy := [...]counts{{}, {}}
	for range fleetRounds {
		for i, nodes := range sizes {
			if err := s.loadFleet(ctx, nodes, busy[i]); err != nil {
				return err
			}
		}
	}
	ratio := func(what, format string, goal float64, of, each string) {
		r.ratio(what, format, busy[1][of]/busy[1][each], busy[0][of]/busy[0][each], goal)
	}
	load := fmt.Sprintf("%d nodes behind HAProxy, %d hot pages, %d writes/s to each", fleetNodes, fleetPages, fleetWrites)
	ratio(load+": queries per change of a page, against 1 node", "%.2f", 1.1, "queries", "changes")
	both := func(c counts) string { return fmt.Sprintf("%.0f, %.0f", c["requests"], c["changes"]) }
	r.figure("… requests, changes", both(busy[1]), both(busy[0]))
	ratio("… round trips to Redis per request, in all", "%.4f", 0, "trips", "requests")
	ratio("… of these for limits", "%.4f", 0, "limits", "requests")
	ratio("… for pages, per change of a page", "%.2f", 0, "pages", "changes")
	ratio("… for the log of changes, per second", "%.0f", 0, "log", "seconds")
	return nil
}

// loadFleet starts this many nodes behind HAProxy, puts load on them, and adds it to busy.
func (s *subject) loadFleet(ctx context.Context, nodes int, busy counts) error {
	f, err := startFleet(ctx, s, nodes)
	if err != nil {
		return err
	}
	defer f.end()
	proxy, err := f.startHAProxy(filepath.Dir(s.program))
	if err != nil {
		return err
	}
	defer proxy.end()
	var workspaces []uuid.UUID
	var keys []string
	for range fleetPages {
		workspace, key, err := smallWorkspace(ctx, s)
		if err != nil {
			return err
		}
		workspaces, keys = append(workspaces, workspace), append(keys, key)
	}
	load := func(length time.Duration) (requests, changes float64, err error) {
		return s.changeWhileRead(ctx, proxy, workspaces, keys, length)
	}
	if _, _, err := load(2 * time.Second); err != nil { // keys are known, leases taken, pages hot
		return err
	}
	before, err := f.counts(ctx)
	if err != nil {
		return err
	}
	requests, changes, err := load(fleetTime)
	if err != nil {
		return err
	}
	now, err := f.counts(ctx)
	busy.add(before, now)
	busy["requests"] += requests
	busy["changes"] += changes
	return err
}

// counts are those of the fleet so far: by the nodes' metrics, and for Redis' CPU and the log,
// which has no metric, by Redis' own counts. An append is a transaction.
func (f *followingFleet) counts(ctx context.Context) (c counts, err error) {
	c = counts{"seconds": float64(time.Now().UnixNano()) / 1e9}
	for _, n := range f.nodes {
		used, err := n.cpu()
		if err != nil {
			return nil, err
		}
		c["cpu"] += used.Seconds()
		c["queries"] += n.metric(fetched)
		c["limits"] += n.metric("listedge_limiter_redis_trips_total")
		c["pages"] += n.metric("listedge_cache_redis_calls_total")
	}
	if f.redis != nil {
		stats, err := redisInfo(ctx, f.redis)
		if err != nil {
			return nil, err
		}
		c["log"], c["redis cpu"] = stats["xread calls"]+stats["exec calls"], stats.cpu()
	}
	c["trips"] = c["limits"] + c["pages"] + c["log"]
	return c, nil
}

// startHAProxy starts HAProxy in front of the nodes, with the configuration of deploy/, of which
// only addresses are changed.
func (f *followingFleet) startHAProxy(dir string) (*server, error) {
	text, err := os.ReadFile("deploy/haproxy/haproxy.cfg")
	if err != nil {
		return nil, err
	}
	var servers strings.Builder
	for i, n := range f.nodes {
		_, port, _ := strings.Cut(n.admin, ":")
		fmt.Fprintf(&servers, "    server node%d %s port %s\n", i+1, n.address, port)
	}
	file := filepath.Join(dir, "haproxy.cfg")
	return startServer("haproxy", func(address, admin string) []string {
		changes := strings.NewReplacer("bind :8080\n", "bind "+address+"\n", "bind :8404\n", "bind "+admin+"\n", " check port 9090 ", " check ",
			" resolvers docker resolve-prefer ipv4 init-addr none", "", "    server-template node 12 node:8080\n", servers.String())
		if err := os.WriteFile(file, []byte(changes.Replace(string(text))), 0o644); err != nil {
			return []string{"-v"} // and so ends
		}
		return []string{"-db", "-f", file}
	})
}

// changeWhileRead has readers ask for the pages at an even pace while a writer
// changes their rows.
func (s *subject) changeWhileRead(ctx context.Context, from *server, workspaces []uuid.UUID, keys []string, length time.Duration) (requests, changes float64,
	err error) {
	reading, stop := context.WithTimeout(ctx, length)
	defer stop()
	var answered atomic.Int64
	var readers errgroup.Group
	for i := range fleetReaders {
		readers.Go(func() error {
			c := from.client(keys[i%len(keys)])
			for reading.Err() == nil {
				if _, _, err := c.get(itemsPath(10), "identity"); err != nil {
					stop()
					return err
				}
				answered.Add(1)
				time.Sleep(fleetPause)
			}
			return nil
		})
	}
	writes := time.NewTicker(time.Second / (fleetWrites * time.Duration(len(workspaces))))
	defer writes.Stop()
	n := 0
	for err == nil && reading.Err() == nil {
		select {
		case <-reading.Done():
		case <-writes.C:
			_, err = s.db.Exec(ctx, countUp, workspaces[n%len(workspaces)], strconv.FormatInt(time.Now().UnixMicro(), 10))
			n++
		}
	}
	stop()
	return float64(answered.Load()), float64(n), errors.Join(readers.Wait(), err, ctx.Err())
}
