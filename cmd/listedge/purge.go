package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"listedge/origin/admin"
)

type purgeCommand struct {
	databaseFlags
	Workspace *uuid.UUID `help:"This workspace's pages." placeholder:"ID"`
	All       bool       `help:"The pages of all workspaces."`
}

// Validate wants it said what to purge: a variable that is not set must not
// purge everything.
func (c *purgeCommand) Validate() error {
	if (c.Workspace != nil) == c.All {
		return errors.New("give either --workspace or --all")
	}
	return c.databaseFlags.Validate()
}

// Run has pages read anew on all nodes. The word travels like any change: in
// the WAL, to the follower, and from there to every node, in its turn.
func (c *purgeCommand) Run(ctx context.Context, t *terminal) error {
	return withAdmin(ctx, c.databaseFlags, func(a *admin.Conn) error {
		if err := a.Purge(ctx, c.Workspace); err != nil {
			return err
		}
		what := "all workspaces"
		if c.Workspace != nil {
			what = "workspace " + c.Workspace.String()
		}
		fmt.Fprintln(t.out, "purged", what)
		return nil
	})
}
