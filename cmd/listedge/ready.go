package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// readyTimeout bounds the whole question; /readyz gives each of its checks a
// second.
const readyTimeout = 3 * time.Second

type readyCommand struct {
	Admin adminURL `help:"Admin listener of the node." default:"http://127.0.0.1:9090" placeholder:"URL"`
}

// Run asks the node what load balancers ask it: for health checks in a
// container that has nothing else to ask with.
func (c *readyCommand) Run(ctx context.Context, t *terminal) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var n nodeSeen
	n.readiness, n.err = nodeAddress{url: c.Admin}.readiness(ctx, http.DefaultClient)
	switch {
	case n.err != nil:
		return fmt.Errorf("ask the node: %w", n.err)
	case n.readiness.Draining:
		return errors.New("not ready: draining")
	case !n.readiness.Ready:
		return fmt.Errorf("not ready: %s", n.complaints())
	}
	fmt.Fprintln(t.out, "ready")
	return nil
}
