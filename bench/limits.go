package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
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
	arrivals func(*fleet)
	length   func(limit) time.Duration
}

const (
	fast       = 400 * time.Microsecond
	cutLength  = 60 * time.Second
	stopLength = 10 * time.Second
)

var chapters = []chapter{
	{title: "A fast Redis (0.4 ms), on 1 / 3 / 8 nodes", nodes: []int{1, 3, 8}, roundTrip: fast, scenarios: []scenario{
		{"80 %", poisson(.8, anyNode), manyRequests},
		{"95 %", poisson(.95, anyNode), manyRequests},
		{"flood × 10", poisson(10, anyNode), aMinute}}},
	{title: "A whole burst at once, spread over 3 / 8 nodes", nodes: []int{3, 8}, roundTrip: fast, scenarios: []scenario{
		{"same instant", bursts(0), someBursts},
		{"50 µs apart", bursts(50 * time.Microsecond), someBursts},
		{"1 ms apart", bursts(time.Millisecond), someBursts}}},
	{title: "A Redis of 10 ms, on 1 / 3 / 8 nodes", nodes: []int{1, 3, 8}, roundTrip: 10 * time.Millisecond, scenarios: slow},
	{title: "A Redis of 20 ms, on 1 / 3 / 8 nodes", nodes: []int{1, 3, 8}, roundTrip: 20 * time.Millisecond, scenarios: slow},
	{title: "2 of 3 nodes cut off from Redis for 60 s", nodes: []int{3}, roundTrip: fast,
		fault: fault{length: cutLength, cut: 2}, scenarios: throughout(beforeFault + cutLength)},
	{title: "Redis stopped for 10 s, and 10 s after it, on 1 / 3 / 8 nodes", nodes: []int{1, 3, 8}, roundTrip: fast,
		fault: fault{length: stopLength, stopped: true}, scenarios: throughout(beforeFault + 2*stopLength)},
}

var slow = []scenario{
	{"80 %", poisson(.8, anyNode), manyRequests},
	{"80 %, all on one node", poisson(.8, oneNode), manyRequests},
	{"flood × 10", poisson(10, anyNode), aMinute},
}

func throughout(length time.Duration) []scenario {
	fixed := func(limit) time.Duration { return length }
	return []scenario{{"80 %", poisson(.8, anyNode), fixed}, {"flood × 10", poisson(10, anyNode), fixed}}
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
	{"over-admitted, tokens (% of burst)", func(o outcome) string { return fmt.Sprintf("%.0f (%.0f)", o.over, o.overBurst) }},
	{"used %", func(o outcome) string { return fmt.Sprintf("%.1f", o.used()) }},
	{"calls per request", func(o outcome) string { return fmt.Sprintf("%.3f", o.callsPerRequest()) }},
	{"waiting %", func(o outcome) string { return fmt.Sprintf("%.1f", o.waiting()) }},
	{"longest wait, ms", func(o outcome) string { return fmt.Sprintf("%.1f", float64(o.longest)/1000) }},
}

// measureLimits shows what limiting a fleet costs and gets wrong, by listedge's
// design and by others: in virtual time, against an exact central bucket with
// the same arrivals.
func measureLimits(ctx context.Context, _ *subject, r *report) error {
	found := simulateAll()
	head := []string{"load", "limit", "design"}
	for _, column := range columns {
		head = append(head, column.name)
	}
	for _, c := range chapters {
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
	return measureLimitCost(ctx, r)
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
	const answers = "A fast Redis,A Redis of"
	overBurst := func(o outcome) float64 { return o.overBurst }
	lost := func(o outcome) float64 { return 100 - o.used() }
	isDefault := func(at cell) bool { return at.limit == heldTo[1] && at.nodes == 8 }
	for _, g := range []struct {
		what, format   string
		figure         func(outcome) float64
		chapters, load string // parts of their titles, and of the load
		in             func(cell) bool
		goal           float64
	}{
		{"limits, listedge, Redis in 0.4 to 20 ms: over-admitted, worst, % of a burst", "%.0f", overBurst, answers, "", nil, 20},
		{"… falsely refused at 80 % load, worst, %", "%.2f", outcome.falselyRefused, answers, "80 %", nil, .6},
		{"… not used in a flood, worst, %", "%.1f", lost, answers, "flood", nil, 3},
		{"… calls per request, 50/s b100 at 80 % on 8 nodes", "%.2f", outcome.callsPerRequest, "A fast Redis", "80 %", isDefault, .25},
		{"… requests that wait there, %", "%.1f", outcome.waiting, "A fast Redis", "80 %", isDefault, 5},
		{"… refused of a whole burst at the same instant, worst, %", "%.1f", outcome.falselyRefused, "whole burst", "instant", nil, 5},
		{"… 50 µs apart and more, worst, %", "%.1f", outcome.falselyRefused, "whole burst", "apart", nil, 1},
		{"… over-admitted with 2 of 3 nodes cut off for 60 s, worst, % of a burst", "%.0f", overBurst, "cut off", "", nil, 100},
		{"… over-admitted with Redis stopped for 10 s, worst, % of a burst", "%.0f", overBurst, "stopped", "", nil, 100},
	} {
		worst := 0.
		for at, o := range all {
			for title := range strings.SplitSeq(g.chapters, ",") {
				if at.design == designs[0].name && strings.Contains(at.chapter, title) && strings.Contains(at.load, g.load) && (g.in == nil || g.in(at)) {
					worst = max(worst, g.figure(o))
				}
			}
		}
		r.atMost(g.what, g.format, worst, g.goal)
	}
}

// simulateAll runs every trial with every design, on all processors.
func simulateAll() outcomes {
	found := outcomes{}
	var mu sync.Mutex // guards found
	var all errgroup.Group
	all.SetLimit(runtime.GOMAXPROCS(0))
	for _, c := range chapters {
		for _, sc := range c.scenarios {
			for _, l := range heldTo {
				for _, n := range c.nodes {
					for _, d := range designs {
						all.Go(func() error {
							o := simulate(d, trial{limit: l, nodes: n, length: sc.length(l), roundTrip: c.roundTrip, arrivals: sc.arrivals, fault: c.fault})
							mu.Lock()
							defer mu.Unlock()
							found[cell{c.title, sc.load, l, n, d.name}] = o
							return nil
						})
					}
				}
			}
		}
	}
	_ = all.Wait()
	return found
}
