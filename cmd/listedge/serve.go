package main

import "context"

type serveCommand struct {
	listenFlags
	databaseFlags
	nodeFlags
}

// Run serves until ctx ends.
func (c *serveCommand) Run(ctx context.Context, t *terminal) error {
	public, private, err := listenBoth(c.listenFlags)
	if err != nil {
		return err
	}
	n, err := newNode(ctx, c.nodeFlags, c.DatabaseURL, newLogger(t, c.nodeFlags), public, private)
	if err != nil {
		public.Close()
		private.Close()
		return err
	}
	return n.serve(ctx)
}
