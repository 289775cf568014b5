package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
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

// measureLimits shows what a fleet gets wrong, in fake time and over HTTP, and what limits
// cost Redis.
func measureLimits(ctx context.Context, s *subject, r *report) error {
	t := r.table("Clients that keep to their limit, on 1 / 2 / 3 / 8 / 16 nodes, in fake time", "what", "limit", "figure", "goal")
	out, err := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run", "^TestWhatClientsGet$", "listedge/internal/world").CombinedOutput()
	for _, line := range strings.Split(string(out), "\n") {
		if cells := strings.Split(line, " | "); len(cells) == 4 {
			_, what, _ := strings.Cut(cells[0], ": ") // before it stands the line of the test
			t.add(what, cells[1], cells[2], cells[3])
		}
	}
	if len(t.rows) == 1 {
		return fmt.Errorf("%w: %s", err, out)
	}
	return errors.Join(measureLimitsOverHTTP(ctx, s, r), measureLimitCost(ctx, r)) // a goal that is missed is in the table
}

// share is the part of n in of, in percent.
func share(n, of int) float64 { return 100 * float64(n) / float64(max(of, 1)) }
