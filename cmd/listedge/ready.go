package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"listedge/cmd/listedge/doctor"
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
		err := c.Node.Ready(asking)
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
