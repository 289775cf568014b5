package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
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

// measureLimits shows what a fleet gets wrong, in virtual time and over HTTP, beside designs that
// keep a limit otherwise; and what limits cost Redis.
func measureLimits(ctx context.Context, s *subject, r *report) error {
	t := r.table(fmt.Sprintf("Clients that keep to their limit, on %s nodes, in virtual time", sizes(leasetest.Sizes)), "what", "limit", "figure", "goal")
	all := leasetest.Scenarios()
	rows := make([][]string, len(all))
	var running errgroup.Group
	running.SetLimit(runtime.GOMAXPROCS(0))
	for i, s := range all {
		running.Go(func() error {
			l, figures, goal := limit{s.Rate, s.Burst}, make([]string, len(leasetest.Sizes)), ""
			if s.Most > 0 {
				goal = fmt.Sprintf("≤ %g", s.Most)
			}
			for k, nodes := range leasetest.Sizes {
				if figures[k] = "–"; nodes >= s.Least {
					figure, _ := s.Play(nodes, l.policy())
					if figures[k] = fmt.Sprintf("%.3g", figure); s.Most > 0 && figure > s.Most {
						goal += " missed"
					}
				}
			}
			rows[i] = []string{s.What, l.String(), strings.Join(figures, " / "), goal}
			return nil
		})
	}
	_ = running.Wait()
	t.rows = append(t.rows, rows...)
	compareDesigns(r)
	return errors.Join(measureLimitsOverHTTP(ctx, s, r), measureLimitCost(ctx, r))
}

// share of n in of, in percent.
func share(n, of int) float64 { return 100 * float64(n) / float64(max(of, 1)) }

func sizes(nodes []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(nodes), "[]"), " ", " / ")
}

const minute = 60_000_000 // microseconds

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
	t := r.table("Other designs on 3 / 8 nodes, in virtual time", "load", "limit", "design", "over-admitted, % of burst", "used of an exact bucket, %",
		"calls per request")
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
		return leasetest.Far(3, l.policy(), nodes, 400).Measure(leasetest.Steady(load), minute)
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
