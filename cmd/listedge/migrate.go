package main

import (
	"cmp"
	"context"
	"fmt"

	"listedge/origin"
	"listedge/origin/follower"
)

type migrateCommand struct {
	Up     migrateUp     `cmd:"" help:"Apply what is pending. Several may run at once."`
	Status migrateStatus `cmd:"" help:"List migrations, applied and pending."`
}

type migrateUp struct {
	databaseFlags
	regionFlag
}

// Validate is explicit because each of the embedded has one.
func (c *migrateUp) Validate() error {
	return cmp.Or(c.databaseFlags.Validate(), c.regionFlag.Validate())
}

// Run migrates, and makes what changes are followed by as far as the user may:
// what it could not make is told and is no failure.
func (c *migrateUp) Run(ctx context.Context, t *terminal) error {
	applied, err := origin.MigrateSchema(ctx, c.DatabaseURL)
	for _, m := range applied {
		fmt.Fprintf(t.out, "applied %s\n", m.Name)
	}
	if err != nil {
		return err
	}
	done, lacks, err := origin.PublishChanges(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	for _, d := range done {
		fmt.Fprintln(t.out, d)
	}
	for _, l := range lacks {
		fmt.Fprintf(t.out, "not made: %s: %s\n", l.What, oneLine(l.Why))
	}
	slot, created, err := follower.CreateSlot(ctx, c.DatabaseURL, c.Region)
	switch {
	case err != nil: // nodes work without it, and make it once they can
		fmt.Fprintf(t.out, "not made: the slot: %s\n", oneLine(err.Error()))
	case created:
		fmt.Fprintf(t.out, "made the slot %s\n", slot)
	}
	if len(applied)+len(done) == 0 && !created {
		fmt.Fprintln(t.out, "nothing to apply")
	}
	return nil
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
