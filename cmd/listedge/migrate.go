package main

import (
	"context"
	"fmt"

	"listedge/origin"
)

type migrateCommand struct {
	Up     migrateUp     `cmd:"" help:"Apply what is pending. Several may run at once."`
	Status migrateStatus `cmd:"" help:"List migrations, applied and pending."`
}

type migrateUp struct{ databaseFlags }

// Run migrates.
func (c *migrateUp) Run(ctx context.Context, t *terminal) error {
	applied, err := origin.MigrateUp(ctx, c.DatabaseURL)
	for _, m := range applied {
		fmt.Fprintf(t.out, "applied %s\n", m.Name)
	}
	if err == nil && len(applied) == 0 {
		fmt.Fprintln(t.out, "nothing to apply")
	}
	return err
}

type migrateStatus struct {
	databaseFlags
	jsonFlag
}

// Run lists migrations.
func (c *migrateStatus) Run(ctx context.Context, t *terminal) error {
	all, err := origin.MigrateStatus(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	return c.print(t, all, func() {
		for _, m := range all {
			state := "pending"
			if !m.AppliedAt.IsZero() {
				state = "applied " + instant(&m.AppliedAt)
			}
			fmt.Fprintf(t.out, "%-32s %s\n", m.Name, state)
		}
	})
}
