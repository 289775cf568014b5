package main

import (
	"context"
	"fmt"
	"time"

	"listedge/cmd/listedge/doctor"
)

// readyTimeout bounds the whole command.
const readyTimeout = 3 * time.Second

type readyCommand struct {
	Admin doctor.AdminURL `help:"Admin listener of the node." default:"http://127.0.0.1:9090" placeholder:"URL"`
}

// Run requests /readyz, for health checks in a container without curl.
func (c *readyCommand) Run(ctx context.Context, t *terminal) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := c.Admin.Ready(ctx); err != nil {
		return err
	}
	fmt.Fprintln(t.out, "ready")
	return nil
}
