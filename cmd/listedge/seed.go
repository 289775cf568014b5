package main

import (
	"fmt"

	"listedge/origin/load"
)

type seedCommand struct {
	ChangeFlags
	Workspaces int   `help:"Number of workspaces." default:"1" placeholder:"W"`
	Items      int   `help:"Number of items in each workspace." default:"1000" placeholder:"N"`
	Contacts   int   `help:"Number of contacts in each workspace." default:"1000" placeholder:"M"`
	Seed       int64 `help:"The same seed gives the same data." default:"1" placeholder:"S"`
}

// Run creates workspaces with sample data and prints their ids.
func (c *seedCommand) Run(ctx acting, t *terminal) error {
	if c.Workspaces < 1 || c.Items < 0 || c.Contacts < 0 {
		return usageError{Err: fmt.Errorf("--workspaces must be at least 1, --items and --contacts at least 0")}
	}
	spec := load.SeedSpec{Workspaces: c.Workspaces, Items: c.Items, Contacts: c.Contacts, Seed: c.Seed}
	workspaces, err := load.Seed(ctx, c.DatabaseURL, spec, t.err)
	for _, w := range workspaces {
		fmt.Fprintln(t.out, w)
	}
	return err
}
