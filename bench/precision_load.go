package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// precisionCost has the requests and changes of one case, and what they cost.
type precisionCost struct {
	lists   []struct{ requests, hits int }
	changes int
	used    counts
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
	defer stop()
	written := make(chan error, 1)
	before, err := f.counts(ctx)
	if err != nil {
		return c, err
	}
	go func() { written <- p.change(writing, &c, oneRow, changes, perSecond) }()
	requests := int(precisionAsked * p.length.Seconds())
	err = p.askAll(ctx, f.nodes, requests, precisionAsked, func(page int, status string) {
		mu.Lock()
		defer mu.Unlock()
		of := &c.lists[p.pages[page].list]
		of.requests++
		if strings.HasPrefix(status, "listedge; hit") {
			of.hits++
		}
	})
	stop()
	if err = errors.Join(err, <-written); err != nil {
		return c, err
	}
	now, err := f.counts(ctx)
	c.used = counts{}
	c.used.add(before, now)
	return c, err
}

// change changes rows at the rate until ctx ends.
func (p *precision) change(ctx context.Context, c *precisionCost, oneRow bool, changes []string, perSecond float64) error {
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
		if _, err := p.db.Exec(context.WithoutCancel(ctx), sql, row, p.numbers, p.workspace); err != nil {
			return err
		}
	}
}

// askAll asks for so many pages, in turn, of the nodes in turn, at a rate; 0 = without
// pause. It calls answered with the page and its Cache-Status.
func (p *precision) askAll(ctx context.Context, nodes []*server, requests int, perSecond float64, answered func(page int, status string)) error {
	began := time.Now()
	var clients []*client
	for _, n := range nodes {
		clients = append(clients, n.client(p.key))
	}
	return each(ctx, requests, func(i int) error {
		if perSecond > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))))
		}
		page := i % len(p.pages)
		_, status, err := clients[(i/len(p.pages)+i)%len(clients)].get(p.pages[page].path, "identity")
		if err == nil {
			answered(page, status)
		}
		return err
	})
}
