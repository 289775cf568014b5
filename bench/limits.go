package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// heldTo are the limits of the tables: small, the default, large.
var heldTo = []limit{{10, 10}, {50, 100}, {1000, 1000}}

// chapter is a table: a row for every scenario, limit and design, in it a figure
// for every size of fleet.
type chapter struct {
	title     string
	nodes     []int
	roundTrip time.Duration
	fault     fault
	scenarios []scenario
}

type scenario struct {
	load     string
	arrivals func(*traffic)
	length   func(limit) time.Duration
}

const (
	cutLength  = 60 * time.Second
	stopLength = 10 * time.Second
)

var chapters = []chapter{
	{title: "A fast Redis (0.4 ms), on 1 / 3 / 8 nodes", nodes: []int{1, 3, 8}, roundTrip: 400 * time.Microsecond, scenarios: []scenario{
		{"80 %", poisson(.8, anyNode), manyRequests},
		{"95 %", poisson(.95, anyNode), manyRequests},
		{"flood × 10", poisson(10, anyNode), aMinute}}},
	{title: "A whole burst at once, spread over 3 / 8 nodes", nodes: []int{3, 8}, roundTrip: 400 * time.Microsecond, scenarios: []scenario{
		{"same instant", bursts(0), someBursts},
		{"50 µs apart", bursts(50 * time.Microsecond), someBursts},
		{"1 ms apart", bursts(time.Millisecond), someBursts}}},
	{title: "A Redis of 10 ms, on 1 / 3 / 8 nodes", nodes: []int{1, 3, 8}, roundTrip: 10 * time.Millisecond, scenarios: slow},
	{title: "A Redis of 20 ms, on 1 / 3 / 8 nodes", nodes: []int{1, 3, 8}, roundTrip: 20 * time.Millisecond, scenarios: slow},
	{title: "2 of 3 nodes cut off from Redis for 60 s", nodes: []int{3}, roundTrip: 400 * time.Microsecond,
		fault: fault{length: cutLength, cut: 2}, scenarios: []scenario{
			{"80 %", poisson(.8, anyNode), fixed(beforeFault + cutLength)},
			{"flood × 10", poisson(10, anyNode), fixed(beforeFault + cutLength)}}},
	{title: "Redis stopped for 10 s, and 10 s after it, on 1 / 3 / 8 nodes", nodes: []int{1, 3, 8}, roundTrip: 400 * time.Microsecond,
		fault: fault{length: stopLength, stopped: true}, scenarios: []scenario{
			{"80 %", poisson(.8, anyNode), fixed(beforeFault + 2*stopLength)},
			{"flood × 10", poisson(10, anyNode), fixed(beforeFault + 2*stopLength)}}},
}

var slow = []scenario{
	{"80 %", poisson(.8, anyNode), manyRequests},
	{"80 %, all on one node", poisson(.8, oneNode), manyRequests},
	{"flood × 10", poisson(10, anyNode), aMinute},
}

func fixed(length time.Duration) func(limit) time.Duration {
	return func(limit) time.Duration { return length }
}

// aMinute is shorter where it has very many requests.
func aMinute(l limit) time.Duration {
	if l.rate >= 1000 {
		return 20 * time.Second
	}
	return time.Minute
}

// manyRequests is long enough for about 20,000 requests at the rate.
func manyRequests(l limit) time.Duration {
	return max(20*time.Second, time.Duration(20_000/l.rate*1e9))
}

func someBursts(l limit) time.Duration {
	return 20 * (betweenBursts + time.Duration(float64(l.burst)/l.rate*1e9))
}

// columns are the figures of a table.
var columns = []struct {
	name string
	text func(outcome) string
}{
	{"falsely refused %", func(o outcome) string {
		if o.exact < o.requests/2 {
			return "–" // in a flood it says nothing which ones are refused
		}
		return fmt.Sprintf("%.2f", o.falselyRefused())
	}},
	{"over-admitted, tokens (% of burst)", func(o outcome) string { return fmt.Sprintf("%.0f (%.0f)", o.over, o.overBurst()) }},
	{"used %", func(o outcome) string { return fmt.Sprintf("%.1f", o.used()) }},
	{"calls per request", func(o outcome) string { return fmt.Sprintf("%.3f", o.callsPerRequest()) }},
	{"waiting %", func(o outcome) string { return fmt.Sprintf("%.1f", o.waiting()) }},
	{"longest wait, ms", func(o outcome) string { return fmt.Sprintf("%.1f", float64(o.longest)/1000) }},
}

// measureLimits shows what limiting a fleet costs and gets wrong, by listedge's
// design and by others: in virtual time, against an exact central bucket with
// the same arrivals, and with real nodes on a real Redis.
func measureLimits(ctx context.Context, _ *subject, r *report) error {
	found := simulateAll()
	for _, c := range chapters {
		head := []string{"load", "limit", "design"}
		for _, column := range columns {
			head = append(head, column.name)
		}
		t := r.table(c.title, head...)
		for _, sc := range c.scenarios {
			for _, l := range heldTo {
				for _, d := range designs {
					row := []string{sc.load, l.String(), d.name}
					for _, column := range columns {
						var figures []string
						for _, n := range c.nodes {
							figures = append(figures, column.text(found[cell{c.title, sc.load, l, n, d.name}]))
						}
						row = append(row, strings.Join(figures, " / "))
					}
					t.add(row...)
				}
			}
		}
	}
	found.compareWithGoals(r)
	for _, d := range designs {
		for _, n := range chapters[0].nodes {
			r.point("Limits: Redis calls per request", "nodes, a key of 50/s at 80 %", d.name, n,
				found[cell{chapters[0].title, "80 %", heldTo[1], n, d.name}].callsPerRequest())
		}
	}
	return measureRealLimits(ctx, r)
}

// cell names what a design did in a trial.
type cell struct {
	chapter, load string
	limit         limit
	nodes         int
	design        string
}

type outcomes map[cell]outcome

// compareWithGoals adds the worst that listedge did.
func (all outcomes) compareWithGoals(r *report) {
	steady := chapters[0].title
	worst := func(figure func(outcome) float64, in func(cell) bool) []float64 {
		w := 0.
		for at, o := range all {
			if at.design == designs[0].name && in(at) {
				w = max(w, figure(o))
			}
		}
		return []float64{w}
	}
	chapter := func(titles ...string) func(cell) bool {
		return func(at cell) bool {
			return slices.ContainsFunc(titles, func(t string) bool { return strings.Contains(at.chapter, t) })
		}
	}
	load := func(in func(cell) bool, load string) func(cell) bool {
		return func(at cell) bool { return in(at) && strings.Contains(at.load, load) }
	}
	answering := chapter(steady, "A Redis of")
	theDefault := func(at cell) bool {
		return at.chapter == steady && at.load == "80 %" && at.limit == heldTo[1] && at.nodes == 8
	}
	lost := func(o outcome) float64 { return 100 - o.used() }

	r.atMost("limits, listedge, Redis in 0.4 to 20 ms: over-admitted, worst, % of a burst", "%.0f", worst(outcome.overBurst, answering), nil, 20)
	r.atMost("… falsely refused at 80 % load, worst, %", "%.2f", worst(outcome.falselyRefused, load(answering, "80 %")), nil, .6)
	r.atMost("… not used in a flood, worst, %", "%.1f", worst(lost, load(answering, "flood")), nil, 3)
	r.atMost("… calls per request, 50/s b100 at 80 % on 8 nodes", "%.2f", worst(outcome.callsPerRequest, theDefault), nil, .25)
	r.atMost("… requests that wait there, %", "%.1f", worst(outcome.waiting, theDefault), nil, 5)
	bursts := chapter("whole burst")
	r.atMost("… refused of a whole burst at the same instant, worst, %", "%.1f", worst(outcome.falselyRefused, load(bursts, "instant")), nil, 5)
	r.atMost("… 50 µs apart and more, worst, %", "%.1f", worst(outcome.falselyRefused, load(bursts, "apart")), nil, 1)
	r.atMost("… over-admitted with 2 of 3 nodes cut off for 60 s, worst, % of a burst", "%.0f", worst(outcome.overBurst, chapter("cut off")), nil, 100)
	r.atMost("… over-admitted with Redis stopped for 10 s, worst, % of a burst", "%.0f", worst(outcome.overBurst, chapter("stopped")), nil, 100)
}

// simulateAll runs every trial with every design, on all processors.
func simulateAll() outcomes {
	found := outcomes{}
	var mu sync.Mutex // guards found
	var all sync.WaitGroup
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	run := func(at cell, d design, t trial) {
		places <- struct{}{}
		all.Go(func() {
			o := simulate(d, t)
			<-places
			mu.Lock()
			defer mu.Unlock()
			found[at] = o
		})
	}
	for _, c := range chapters {
		for _, sc := range c.scenarios {
			for _, l := range heldTo {
				for _, n := range c.nodes {
					for _, d := range designs {
						run(cell{c.title, sc.load, l, n, d.name}, d,
							trial{limit: l, nodes: n, length: sc.length(l), roundTrip: c.roundTrip, arrivals: sc.arrivals, fault: c.fault})
					}
				}
			}
		}
	}
	all.Wait()
	return found
}
