package main

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"listedge/origin/admin"
)

type purgeCommand struct {
	ChangeFlags
	Workspace *uuid.UUID `help:"Purge the pages of this workspace." placeholder:"ID"`
	All       bool       `help:"Purge the pages of all workspaces."`
}

// Validate requires a choice: an empty variable must not purge everything.
func (c *purgeCommand) Validate() error {
	if (c.Workspace != nil) == c.All {
		return errors.New("give either --workspace or --all")
	}
	return nil
}

// Run invalidates pages on all nodes. A purge is published like a change: the follower
// reads it from the WAL and writes it to the log of changes, which every node reads.
func (c *purgeCommand) Run(ctx acting, t *terminal, a *admin.Conn) error {
	if err := admin.Purge(ctx, a, c.Workspace); err != nil {
		return err
	}
	what := "all workspaces"
	if c.Workspace != nil {
		what = "workspace " + c.Workspace.String()
	}
	fmt.Fprintln(t.out, "purged", what)
	return nil
}
