package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"listedge/internal/sandbox"
)

const (
	noisyConnections = 64 // four for each query that may run at once
	quietClients     = 8
	quietPause       = 4 * time.Millisecond // between a client's requests
	quietTime        = 3 * time.Second
)

// measureNoisy measures how a workspace that misses all the time delays responses of another
// one. The quiet workspace sends requests at an even pace, in turns alone and while the noisy
// one searches for new texts over many connections. Postgres and the noisy client run on one
// processor, as if they were on another machine. The bare handler gets the same requests: it
// shares only the machine with the noise, so it shows how much the machine itself slows down.
func measureNoisy(ctx context.Context, s *subject, r *report) (err error) {
	apart := strconv.Itoa(runtime.NumCPU() - 1)
	if err := s.pinPostgres(apart); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.pinPostgres("0-"+apart)) }()
	node, err := s.startFollower(ctx)
	if err != nil {
		return err
	}
	defer node.end()
	bare, err := startBare("")
	if err != nil {
		return err
	}
	defer bare.end()
	key, err := s.newKey(ctx, s.sizes[0].workspace)
	if err != nil {
		return err
	}
	hit := &side{name: "listedge", server: node, path: itemsPath(pageSize), headers: []string{"X-API-Key: " + key}}
	page, err := hit.awaitHit(http.StatusOK, ourHit)
	if err != nil {
		return err
	}
	floor, err := bareSide(bare, nil, page.size)
	if err != nil {
		return err
	}
	quiet := []*quietAsker{
		{server: node, key: key, path: func(int) string { return hit.path }},
		{server: bare, key: key, path: func(int) string { return floor.path }},
		// A page nobody else asks for, and none twice within a second.
		{server: node, key: key, path: func(n int) string { return itemsPath(1 + n%100) }, fresh: true, pause: 25 * quietPause},
	}
	alone, noisy := make([][]time.Duration, len(quiet)), make([][]time.Duration, len(quiet))
	var missed float64
	var noise time.Duration
	for range rounds / 2 {
		for i, q := range quiet {
			if err := q.ask(ctx, &alone[i]); err != nil {
				return err
			}
		}
		end, err := s.startNoise(ctx, node, apart)
		if err != nil {
			return err
		}
		const fetches = `listedge_origin_fetches_total{outcome="ok"}`
		before, began := node.metric(fetches), time.Now()
		for i, q := range quiet {
			if err = errors.Join(err, q.ask(ctx, &noisy[i])); err != nil {
				break
			}
		}
		missed += node.metric(fetches) - before
		noise += time.Since(began)
		if err := errors.Join(err, end()); err != nil {
			return err
		}
	}
	p99 := func(d []time.Duration) float64 { return percentile(d, 0.99) }
	for status := range quiet[0].by {
		if !strings.HasPrefix(status, "listedge; hit") {
			return fmt.Errorf("not only hits: %v", quiet[0].by)
		}
	}
	r.ratio("a quiet workspace's hit while another misses all the time: p99, ms, against alone", "%.2f", p99(noisy[0]), p99(alone[0]), 2)
	r.ratio("… the bare handler, which shares but the machine with the noise", "%.2f", p99(noisy[1]), p99(alone[1]), 0)
	r.ratio("… a hit's p99 against the bare handler's, both with the noise", "%.2f", p99(noisy[0]), p99(noisy[1]), 0)
	r.figure("… a hit's median, ms", fmt.Sprintf("%.2f", percentile(noisy[0], 0.5)), fmt.Sprintf("%.2f", percentile(alone[0], 0.5)))
	r.ratio("a quiet workspace's miss while another misses all the time: p99, ms, against alone", "%.2f", p99(noisy[2]), p99(alone[2]), 0)
	r.figure("… a miss's median, ms", fmt.Sprintf("%.2f", percentile(noisy[2], 0.5)), fmt.Sprintf("%.2f", percentile(alone[2], 0.5)))
	r.figure("… queries per second meanwhile", fmt.Sprintf("%.0f", missed/noise.Seconds()), "")
	return nil
}

// quietAsker asks a server at an even pace.
type quietAsker struct {
	server *server
	key    string
	path   func(n int) string
	fresh  bool // of the primary
	pause  time.Duration
	asked  int
	by     map[string]int // answers, by their Cache-Status
}

// ask adds how long each answer took. A client that is answered late does not
// ask more often afterwards.
func (q *quietAsker) ask(ctx context.Context, took *[]time.Duration) error {
	if q.by == nil {
		q.by = map[string]int{}
	}
	asking, stop := context.WithTimeout(ctx, quietTime)
	defer stop()
	var mu sync.Mutex // guards took, asked and failed
	var failed error
	var clients sync.WaitGroup
	for range quietClients {
		clients.Go(func() {
			c := q.server.client(q.key)
			c.fresh = q.fresh
			for asking.Err() == nil {
				mu.Lock()
				path := q.path(q.asked)
				q.asked++
				mu.Unlock()
				began := time.Now()
				_, status, err := c.get(path, "identity")
				spent := time.Since(began)
				mu.Lock()
				q.by[status]++
				*took = append(*took, spent)
				failed = errors.Join(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
				time.Sleep(max(q.pause, quietPause))
			}
		})
	}
	clients.Wait()
	return errors.Join(failed, ctx.Err())
}

// startNoise has wrk search the large workspace for what nobody searched for.
func (s *subject) startNoise(ctx context.Context, node *server, processor string) (end func() error, err error) {
	script := filepath.Join(filepath.Dir(s.program), "noise.lua")
	if err := os.WriteFile(script, []byte(noiseLua), 0o644); err != nil {
		return nil, err
	}
	child, err := sandbox.StartChild(exec.CommandContext(ctx, "taskset", "--cpu-list", processor, "wrk", "--threads", "1", "--connections", strconv.Itoa(noisyConnections),
		"--duration", "1h", "--timeout", "10s", "--script", script, "--header", "X-API-Key: "+s.key, "--header", "Cache-Control: no-cache", "http://"+node.address))
	if err != nil {
		return nil, err
	}
	return func() error {
		select {
		case <-child.Done():
			return errors.New("the noise ended early")
		default:
			_ = child.End(5*time.Second, syscall.SIGINT, syscall.SIGKILL)
			return nil
		}
	}, nil
}

const noiseLua = `
init = function() math.randomseed(os.time()) end
request = function() return wrk.format("GET", string.format("/v1/items?limit=50&search=%06d", math.random(0, 999999))) end
`

// pinPostgres has the processes of connections made from now on, which inherit
// the postmaster's, keep to the processors.
func (s *subject) pinPostgres(processors string) error {
	out, err := exec.Command("taskset", "--cpu-list", "--pid", processors, strconv.Itoa(s.postgres.Pid())).CombinedOutput()
	if err != nil {
		return fmt.Errorf("taskset: %w: %s", err, out)
	}
	return nil
}
