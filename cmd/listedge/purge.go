package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"listedge/origin"
)

type purgeCommand struct {
	databaseFlags
	Workspace uuid.UUID `help:"Only this workspace's pages." placeholder:"ID"`
}

// Run has pages read anew on all nodes. The word travels like any change: in
// the WAL, to the follower, and from there to every node, in its turn.
func (c *purgeCommand) Run(ctx context.Context, t *terminal) error {
	return withAdmin(ctx, c.databaseFlags, func(a *origin.Admin) error {
		var workspace *uuid.UUID
		what := "all workspaces"
		if c.Workspace != (uuid.UUID{}) {
			workspace, what = &c.Workspace, "workspace "+c.Workspace.String()
		}
		if err := a.Purge(ctx, workspace); err != nil {
			return err
		}
		fmt.Fprintln(t.out, "purged", what)
		return nil
	})
}
