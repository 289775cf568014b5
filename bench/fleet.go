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
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

const (
	fleetNodes   = 8
	fleetPages   = 4 // each of a workspace of its own
	fleetReaders = 16
	fleetPause   = 10 * time.Millisecond // of a reader
	fleetWrites  = 5                     // a second, to each page
	fleetTime    = 8 * time.Second
	fleetIdle    = 3 * time.Second // until what starting costs is over
	fleetRounds  = 2
)

// fleetLoad counts what a fleet was sent, and what it sent to its servers meanwhile.
type fleetLoad struct {
	requests, changes  float64 // of clients, and of rows
	queries            float64 // of Postgres, for pages
	limits, pages, log float64 // round trips to Redis, by purpose
	spent              time.Duration
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
	var busy [len(sizes)]fleetLoad
	for range fleetRounds {
		for i, nodes := range sizes {
			if err := s.loadFleet(ctx, nodes, &busy[i]); err != nil {
				return err
			}
		}
	}
	one, many := &busy[0], &busy[1]
	load := fmt.Sprintf("%d nodes behind HAProxy, %d hot pages, %d writes/s to each", fleetNodes, fleetPages, fleetWrites)
	r.ratio(load+": queries per change of a page, against 1 node", "%.2f", many.queries/many.changes, one.queries/one.changes, 1.1)
	r.figure("… requests, changes", fmt.Sprintf("%.0f, %.0f", many.requests, many.changes), fmt.Sprintf("%.0f, %.0f", one.requests, one.changes))
	r.ratio("… round trips to Redis per request, all told", "%.4f", many.trips()/many.requests, one.trips()/one.requests, 0)
	r.ratio("… of these for limits", "%.4f", many.limits/many.requests, one.limits/one.requests, 0)
	r.ratio("… for pages, per change of a page", "%.2f", many.pages/many.changes, one.pages/one.changes, 0)
	r.ratio("… for the log of changes, per second", "%.0f", many.log/many.spent.Seconds(), one.log/one.spent.Seconds(), 0)
	return nil
}

func (a *fleetLoad) trips() float64 { return a.limits + a.pages + a.log }

// loadFleet starts this many nodes behind HAProxy, puts load on them, and adds it to busy.
func (s *subject) loadFleet(ctx context.Context, nodes int, busy *fleetLoad) error {
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
	return f.count(ctx, busy, func() (float64, float64, error) { return load(fleetTime) })
}

// count adds the load of the fleet while do runs.
func (f *followingFleet) count(ctx context.Context, a *fleetLoad, do func() (requests, changes float64, err error)) error {
	before, err := f.load(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	requests, changes, err := do()
	if err != nil {
		return err
	}
	a.spent += time.Since(began)
	after, err := f.load(ctx)
	a.requests, a.changes = a.requests+requests, a.changes+changes
	a.queries += after.queries - before.queries
	a.limits += after.limits - before.limits
	a.pages += after.pages - before.pages
	a.log += after.log - before.log
	return err
}

// load returns the load of the fleet on its servers so far: by the nodes' metrics, and for the
// log, which has none, by Redis' own counts. An append is a transaction.
func (f *followingFleet) load(ctx context.Context) (a fleetLoad, err error) {
	for _, n := range f.nodes {
		a.queries += n.metric(`listedge_origin_fetches_total{outcome="ok"}`)
		a.limits += n.metric("listedge_limiter_redis_trips_total")
		a.pages += n.metric("listedge_cache_redis_calls_total")
	}
	c := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), DisableIdentity: true})
	defer c.Close()
	stats, err := c.Info(ctx, "commandstats").Result()
	if err != nil {
		return a, err
	}
	for line := range strings.Lines(stats) {
		for _, command := range []string{"cmdstat_xread:calls=", "cmdstat_exec:calls="} {
			if rest, ok := strings.CutPrefix(line, command); ok {
				number, _, _ := strings.Cut(rest, ",")
				n, err := strconv.ParseFloat(number, 64)
				if err != nil {
					return a, fmt.Errorf("commandstats: %q", line)
				}
				a.log += n
			}
		}
	}
	return a, nil
}

// startHAProxy starts it with the configuration of deploy/, whose addresses
// alone are changed.
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
func (s *subject) changeWhileRead(ctx context.Context, from *server, workspaces []uuid.UUID, keys []string, length time.Duration) (requests, changes float64, err error) {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close(context.Background())
	reading, stop := context.WithTimeout(ctx, length)
	defer stop()
	var answered atomic.Int64
	errs := make([]error, fleetReaders)
	var readers sync.WaitGroup
	for i := range fleetReaders {
		readers.Go(func() {
			c := from.client(keys[i%len(keys)])
			for reading.Err() == nil {
				if _, _, errs[i] = c.get(itemsPath(10), "identity"); errs[i] != nil {
					stop()
					return
				}
				answered.Add(1)
				time.Sleep(fleetPause)
			}
		})
	}
	writes := time.NewTicker(time.Second / (fleetWrites * time.Duration(len(workspaces))))
	defer writes.Stop()
	n := 0
	for err == nil && reading.Err() == nil {
		select {
		case <-reading.Done():
		case <-writes.C:
			_, err = conn.Exec(ctx, countUp, workspaces[n%len(workspaces)], strconv.FormatInt(time.Now().UnixMicro(), 10))
			n++
		}
	}
	stop()
	readers.Wait()
	return float64(answered.Load()), float64(n), errors.Join(append(errs, err, ctx.Err())...)
}
