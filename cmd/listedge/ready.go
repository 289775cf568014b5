package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"listedge/cmd/listedge/doctor"
	"listedge/edge/admin"
)

const (
	// readyTimeout bounds one request of /readyz.
	readyTimeout = 3 * time.Second
	// readyPause is the time between two of them.
	readyPause = 200 * time.Millisecond
)

type readyCommand struct {
	Node doctor.AdminURL `help:"Admin listener of the node." default:"http://127.0.0.1:9090" placeholder:"URL"`
	Wait time.Duration   `help:"How long to wait until the node is ready; 0 = ask once." default:"0s" placeholder:"DURATION"`
}

// Run requests /readyz until the node is ready or --wait is over, for health checks without curl.
func (c *readyCommand) Run(ctx context.Context, t *terminal) error {
	waiting, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	for {
		asking, cancel := context.WithTimeout(ctx, readyTimeout)
		err := ready(asking, c.Node)
		cancel()
		if err == nil {
			fmt.Fprintln(t.out, "ready")
			return nil
		}
		select {
		case <-waiting.Done():
			return cmp.Or(ctx.Err(), err)
		case <-time.After(readyPause):
		}
	}
}

// ready returns nil if the node is ready, and otherwise says why it is not.
func ready(ctx context.Context, node doctor.AdminURL) error {
	var r admin.Readiness
	if err := node.Get(ctx, "readyz", &r); err != nil {
		return fmt.Errorf("ask the node: %w", err)
	}
	if r.Ready {
		return nil
	}
	var why []string
	for _, name := range slices.Sorted(maps.Keys(r.Checks)) {
		if what := r.Checks[name]; what != "ok" && !strings.HasPrefix(what, "ok: ") {
			why = append(why, name+": "+what)
		}
	}
	if r.Draining {
		why = []string{"draining"}
	}
	return fmt.Errorf("not ready: %s", strings.Join(why, "; "))
}
