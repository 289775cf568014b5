package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"listedge/limiter/lease"
	"listedge/limiter/lease/leasetest"
)

// limit is what a token bucket holds a client to.
type limit struct {
	rate  float64 // tokens a second
	burst int64
}

func (l limit) String() string {
	if l.rate < 1 {
		return fmt.Sprintf("%.3f/s b%d", l.rate, l.burst)
	}
	return fmt.Sprintf("%g/s b%d", l.rate, l.burst)
}

func (l limit) policy() lease.Policy {
	p, err := lease.NewPolicy(l.rate, l.burst)
	if err != nil {
		panic(err)
	}
	return p
}

// world is a fleet in virtual time, on a Redis of that round trip in microseconds.
func (l limit) world(nodes int, roundTrip int64) *leasetest.World {
	w := leasetest.New(nil, 3, l.policy(), nodes)
	w.OneWay = func() int64 { return roundTrip*4/10 + w.Random.Int64N(max(1, roundTrip/5)) }
	return w
}

const (
	fast   = 400 // microseconds of a round trip
	minute = 60_000_000
)

// fleetSizes are the columns of the table.
var fleetSizes = []int{1, 2, 3, 8, 16}

// scenario is a figure of a client that keeps to its limit, on each size of fleet. Before is what
// an earlier version had, where that was measured.
type scenario struct {
	what, before string
	limit        limit
	figure       func(l limit, nodes int) float64
	least        int     // nodes
	goal         float64 // 0 = none
}

func scenarios() (all []scenario) {
	flood := func(l limit, nodes int) float64 { return float64(l.world(nodes, fast).AfterAFlood().Refused) }
	for _, s := range []scenario{
		{before: "1 / – / 26 / – / –", limit: limit{1, 100}}, {before: "1 / – / 81 / – / –", limit: limit{1. / 6, 60}},
		{before: "1 / – / 654 / – / –", limit: limit{1. / 36, 100}}, {before: "1 / – / 20 / – / –", limit: limit{.2, 20}},
		{before: "0 / – / 0 / – / –", limit: limit{50, 100}},
	} {
		all = append(all, scenario{"after a flood: refused of a client that obeys Retry-After", s.before, s.limit, flood, 1, 4})
	}
	for i, x := range []float64{1.02, 1.1, 1.2} {
		bursts := func(l limit, nodes int) (refusals float64) {
			for apart := int64(1000); apart <= 10_000; apart += 1000 {
				refusals += l.world(nodes, fast).RegularBursts(x, apart).Refusals() / 10
			}
			return refusals
		}
		for l, before := range map[limit][3]string{
			{10, 20}:  {"0 / 3.9 / 12.5 / 12.9 / 12.0", "0 / 2.6 / 2.9 / 3.5 / 2.8", "0 / 0.1 / 0.4 / 1.8 / 0.2"},
			{1, 100}:  {"0 / 0.6 / 1.2 / 2.3 / 13.0", "0 / 0.5 / 0.7 / 8.1 / 7.9", "0 / 0.1 / 0.4 / 1.8 / 0.2"},
			{50, 100}: {"0 / 0 / 0 / 0 / 0", "0 / 0 / 0 / 0 / 0", "0 / 0 / 0 / 0 / 0"},
		} {
			all = append(all, scenario{fmt.Sprintf("whole bursts, one in %g refills: refused, %%", x), before[i], l, bursts, 1, .5})
		}
	}
	all = append(all, scenario{"sends exactly r, then waits: refused, %", "1.5", limit{10, 20},
		func(l limit, nodes int) float64 { return l.world(nodes, fast).SpendsWhatIsShown().Refusals() }, 1, .5})
	for _, ms := range []int64{12, 25, 50, 100} {
		all = append(all, scenario{fmt.Sprintf("burst of 1, paced, Redis of %d ms: refused, %%", ms), "50", limit{10, 1},
			func(l limit, nodes int) float64 {
				w := l.world(nodes, fast)
				w.OneWay = func() int64 { return ms * 500 }
				return w.Paced().Refusals()
			}, 1, 1})
	}
	for _, s := range []struct {
		ms     int64
		before string
	}{{60, "0 / – / 0 / 0 / –"}, {100, "– / – / 2.4 / 3.4 / –"}, {130, "– / – / 11 / 27 / –"}} {
		all = append(all, scenario{fmt.Sprintf("80 %% of the rate, Redis of %d ms ± 20 %%: refused, %%", s.ms), s.before, limit{10, 10},
			func(l limit, nodes int) float64 {
				return 100 * l.world(nodes, s.ms*1000).Measure(leasetest.Steady(.8), 5*minute).Short
			}, 1, 0})
	}
	for _, s := range []struct {
		load, hot float64
		before    string
		limit     limit
	}{{10, .97, "– / – / – / 0.83 / –", limit{10, 20}}, {2, .65, "– / – / – / 0.002 / –", limit{50, 100}}, {5, .9, "– / – / – / 0.013 / –", limit{50, 100}}} {
		all = append(all, scenario{fmt.Sprintf("%g times the rate, %g %% on one node: 1 − Jain's index", s.load, 100*s.hot), s.before, s.limit, func(l limit, nodes int) float64 {
			jain, _ := l.world(nodes, fast).Fairness(s.load, s.hot)
			return 1 - jain
		}, 2, .2})
	}
	for _, every := range []int64{2e6, 10e6, 30e6} {
		all = append(all, scenario{fmt.Sprintf("one node crashes every %d s: lost, %%", every/1e6), map[int64]string{2e6: "53", 10e6: "37", 30e6: "25"}[every], limit{100, 200},
			func(l limit, nodes int) float64 {
				share, _ := l.world(nodes, fast).CrashLoop(every)
				return 100 * (1 - share)
			}, 2, 50})
	}
	return append(all, scenario{"a request in 5 s: calls for each", "0.86 / – / 1.00 / 1.02 / 1.07", limit{50, 100}, func(l limit, nodes int) float64 {
		sparse := func(w *leasetest.World) (int64, int64) { return w.Gap(.2), w.AnyNode() }
		return l.world(nodes, fast).Measure(sparse, 60*minute).Calls
	}, 1, 0})
}

// measureLimits shows what a fleet gets wrong, in virtual time, beside an earlier version and
// beside designs that keep a limit otherwise; and what limits cost a real Redis.
func measureLimits(ctx context.Context, _ *subject, r *report) error {
	t := r.table(fmt.Sprintf("Clients that keep to their limit, on %s nodes, in virtual time", sizes(fleetSizes)), "what", "limit", "before", "now", "goal")
	all := scenarios()
	now := make([][]string, len(all))
	missed := make([]bool, len(all))
	var running errgroup.Group
	running.SetLimit(runtime.GOMAXPROCS(0))
	for i, s := range all {
		running.Go(func() error {
			for _, n := range fleetSizes {
				if n < s.least {
					now[i] = append(now[i], "–")
					continue
				}
				figure := s.figure(s.limit, n)
				now[i], missed[i] = append(now[i], fmt.Sprintf("%.3g", figure)), missed[i] || s.goal > 0 && figure > s.goal
			}
			return nil
		})
	}
	_ = running.Wait()
	for i, s := range all {
		goal := ""
		if s.goal > 0 {
			goal = fmt.Sprintf("≤ %g", s.goal)
		}
		if missed[i] {
			goal += " missed"
		}
		t.add(s.what, s.limit.String(), s.before, strings.Join(now[i], " / "), goal)
	}
	slices.SortStableFunc(t.rows[1:], func(a, b []string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
	compareDesigns(r)
	return measureLimitCost(ctx, r)
}

// share of n in of, in percent.
func share(n, of int) float64 { return 100 * float64(n) / float64(max(of, 1)) }

func sizes(nodes []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(nodes), "[]"), " ", " / ")
}

// design decides requests at the moment in microseconds, as its papers describe it. asked is
// whether it called Redis.
type design func(now int64, node int) (admitted, asked bool)

// equalParts gives each node rate/N and burst/N: Kong's local strategy, Doorman's safe capacity.
func equalParts(l limit, nodes int) design {
	parts := make([]leasetest.Exact, nodes)
	for i := range parts {
		parts[i].Policy = limit{l.rate / float64(nodes), max(1, l.burst/int64(nodes))}.policy()
	}
	return func(now int64, node int) (bool, bool) { return parts[node].Take(now), false }
}

// reports keeps a copy of the bucket in each node, which decides alone. Every period it reports
// what it admitted, and reads what the others did: Kong with a sync_rate, gubernator's GLOBAL
// behaviour, Databricks' batches.
func reports(period int64) func(l limit, nodes int) design {
	return func(l limit, nodes int) design {
		type level struct {
			tokens   float64
			at, next int64
			admitted float64 // since the last report
		}
		refill := func(v *level, now int64) {
			v.tokens = min(float64(l.burst), v.tokens+l.rate*float64(now-v.at)/1e6)
			v.at = now
		}
		shared, copies := level{tokens: float64(l.burst)}, make([]level, nodes)
		for i := range copies {
			copies[i] = level{tokens: float64(l.burst), next: period * int64(i+1) / int64(nodes)}
		}
		return func(now int64, node int) (admitted, asked bool) {
			v := &copies[node]
			refill(v, now)
			if asked = now >= v.next; asked {
				refill(&shared, now)
				shared.tokens -= v.admitted
				v.tokens, v.admitted, v.next = shared.tokens, 0, now+period
			}
			if admitted = v.tokens >= 1; admitted {
				v.tokens--
				v.admitted++
			}
			return admitted, asked
		}
	}
}

// compareDesigns has each design decide the same requests, on the same nodes.
func compareDesigns(r *report) {
	t := r.table("Other designs on 3 / 8 nodes, in virtual time", "load", "limit", "design", "over-admitted, % of burst", "used of an exact bucket, %", "calls per request")
	for _, load := range []float64{.8, 10} {
		for _, l := range []limit{{10, 10}, {50, 100}, {1000, 1000}} {
			for _, d := range []struct {
				name string
				open func(l limit, nodes int) design
			}{{"listedge", nil}, {"equal parts", equalParts}, {"reports every 100 ms", reports(100_000)}, {"reports every 1 s", reports(1_000_000)}} {
				var over, used, calls []string
				for _, nodes := range []int{3, 8} {
					result := simulate(l, nodes, load, d.open)
					over = append(over, fmt.Sprintf("%.0f", 100*result.Over/float64(l.burst)))
					used, calls = append(used, fmt.Sprintf("%.1f", 100*result.Share)), append(calls, fmt.Sprintf("%.3f", result.Calls))
				}
				t.add(fmt.Sprintf("%g × the rate", load), l.String(), d.name, strings.Join(over, " / "), strings.Join(used, " / "), strings.Join(calls, " / "))
			}
		}
	}
}

// simulate has a design decide for a minute. nil = listedge.
func simulate(l limit, nodes int, load float64, open func(l limit, nodes int) design) (v leasetest.Result) {
	if open == nil {
		return l.world(nodes, fast).Measure(leasetest.Steady(load), minute)
	}
	random, decide := rand.New(rand.NewPCG(3, uint64(nodes))), open(l, nodes)
	exact, oracle := leasetest.Exact{Policy: l.policy()}, leasetest.Oracle{Policy: l.policy()}
	requests, asks, admissions, due := 0., 0., 0., 0.
	for now := 0.; now < minute; now += random.ExpFloat64() * 1e6 / (load * l.rate) {
		requests++
		if exact.Take(int64(now)) {
			due++
		}
		admitted, asked := decide(int64(now), random.IntN(nodes))
		if asked {
			asks++
		}
		if admitted {
			admissions++
			v.Over = max(v.Over, oracle.Admit(int64(now)))
		}
	}
	v.Share, v.Calls = admissions/due, asks/requests
	return v
}
