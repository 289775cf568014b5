package main

import (
	"context"
	"errors"
	"fmt"
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

// measureLimits shows what a fleet gets wrong, in virtual time and over HTTP, and what limits
// cost Redis.
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
	return errors.Join(measureLimitsOverHTTP(ctx, s, r), measureLimitCost(ctx, r))
}

// share of n in of, in percent.
func share(n, of int) float64 { return 100 * float64(n) / float64(max(of, 1)) }

func sizes(nodes []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(nodes), "[]"), " ", " / ")
}
