package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// precisionCost has the requests and changes of one case, and what they cost.
type precisionCost struct {
	lists            []struct{ requests, hits int }
	changes, queries int
	shown            int // pages that show the rows that were changed, in sum
	nodes, redis     time.Duration
	spent            time.Duration
}

// ask has rows change and clients ask for all pages, again and again.
func (p *precision) ask(ctx context.Context, f *followingFleet, oneRow bool, changes []string, perSecond float64) (c precisionCost, err error) {
	for i, n := range f.nodes { // all pages are there: on the first node, and then in Redis
		if err := p.askAll(ctx, f.nodes[i:i+1], len(p.pages), 0, func(int, string) {}); err != nil {
			return c, fmt.Errorf("node %d, %s: %w", i, n.address, err)
		}
	}
	c.lists = make([]struct{ requests, hits int }, len(precisionLists))
	var mu sync.Mutex // guards c.lists
	writing, stop := context.WithCancel(ctx)
	written := make(chan error, 1)
	return c, f.precisionSpent(ctx, &c, func() error {
		go func() { written <- p.change(writing, &c, oneRow, changes, perSecond) }()
		requests := int(precisionAsked * p.length.Seconds())
		err := p.askAll(ctx, f.nodes, requests, precisionAsked, func(page int, status string) {
			mu.Lock()
			defer mu.Unlock()
			of := &c.lists[p.pages[page].list]
			of.requests++
			if strings.HasPrefix(status, "listedge; hit") {
				of.hits++
			}
		})
		stop()
		return errors.Join(err, <-written)
	})
}

// change changes rows at the rate until ctx ends.
func (p *precision) change(ctx context.Context, c *precisionCost, oneRow bool, changes []string, perSecond float64) error {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	began := time.Now()
	for ; ; c.changes++ {
		time.Sleep(time.Until(began.Add(time.Duration(float64(c.changes) / perSecond * float64(time.Second)))))
		if ctx.Err() != nil {
			return nil
		}
		p.numbers++
		row := p.rows[p.numbers%len(p.rows)]
		if oneRow {
			row = p.rows[0]
		}
		sql := changes[rand.IntN(len(changes))]
		if _, err := conn.Exec(context.WithoutCancel(ctx), sql, row, p.numbers, p.workspace); err != nil {
			return err
		}
		if sql != newRow && sql != newAnyScript {
			c.shown += p.shown[row]
		}
	}
}

// askAll asks for so many pages, in turn, of the nodes in turn, at a rate; 0 = without
// pause. It calls answered with the page and its Cache-Status.
func (p *precision) askAll(ctx context.Context, nodes []*server, requests int, perSecond float64, answered func(page int, status string)) error {
	const workers = 8
	var next atomic.Int64
	errs := make([]error, workers)
	began := time.Now()
	var clients []*client
	for _, n := range nodes {
		clients = append(clients, n.client(p.key))
	}
	var asking sync.WaitGroup
	for w := range workers {
		asking.Go(func() {
			for i := int(next.Add(1)) - 1; i < requests && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if perSecond > 0 {
					time.Sleep(time.Until(began.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))))
				}
				page := i % len(p.pages)
				_, status, err := clients[(i/len(p.pages)+i)%len(clients)].get(p.pages[page].path, "identity")
				if err != nil {
					errs[w] = err
					return
				}
				answered(page, status)
			}
		})
	}
	asking.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// precisionSpent adds what the fleet uses while do runs.
func (f *followingFleet) precisionSpent(ctx context.Context, c *precisionCost, do func() error) error {
	read := func() (queries float64, nodes, redis time.Duration, err error) {
		for _, n := range f.nodes {
			used, err := n.cpu()
			if err != nil {
				return 0, 0, 0, err
			}
			nodes += used
			queries += n.metric(`listedge_origin_fetches_total{outcome="ok"}`)
		}
		if f.redis != nil {
			redis, err = cpuOfRedis(ctx, f.redis.Addr())
		}
		return queries, nodes, redis, err
	}
	queries, nodes, redis, err := read()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	c.spent = time.Since(began)
	queriesAfter, nodesAfter, redisAfter, err := read()
	c.queries, c.nodes, c.redis = int(queriesAfter-queries), nodesAfter-nodes, redisAfter-redis
	return err
}

// cpuOfRedis is the processor time that it has used, as it says.
func cpuOfRedis(ctx context.Context, addr string) (used time.Duration, err error) {
	c := redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})
	defer c.Close()
	text, err := c.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		for _, of := range []string{"used_cpu_sys:", "used_cpu_user:"} {
			if value, ok := strings.CutPrefix(line, of); ok {
				seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				if err != nil {
					return 0, fmt.Errorf("INFO cpu: %q", line)
				}
				used += time.Duration(seconds * float64(time.Second))
			}
		}
	}
	return used, nil
}
