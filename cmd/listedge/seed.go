package main

import (
	"context"
	"fmt"

	"listedge/origin/load"
)

type seedCommand struct {
	databaseFlags
	Workspaces int   `help:"How many workspaces." default:"1" placeholder:"W"`
	Items      int   `help:"Items in each." default:"1000" placeholder:"N"`
	Contacts   int   `help:"Contacts in each." default:"1000" placeholder:"M"`
	Seed       int64 `help:"Another seed, other data; the same seed, the same." default:"1" placeholder:"S"`
}

// Run seeds.
func (c *seedCommand) Run(ctx context.Context, t *terminal) error {
	if c.Workspaces < 1 || c.Items < 0 || c.Contacts < 0 {
		return usageError{fmt.Errorf("--workspaces must be at least 1, --items and --contacts at least 0")}
	}
	spec := load.SeedSpec{Workspaces: c.Workspaces, Items: c.Items, Contacts: c.Contacts, Seed: c.Seed}
	workspaces, err := load.Seed(ctx, c.DatabaseURL, spec, load.NewProgress(t.err))
	for _, w := range workspaces {
		fmt.Fprintln(t.out, w)
	}
	return err
}
