package main

import (
	"cmp"
	"context"
	"fmt"

	"listedge/origin/admin"
	"listedge/origin/follower"
)

type migrateCommand struct {
	Up     migrateUp     `cmd:"" help:"Apply what is pending. Several may run at once."`
	Status migrateStatus `cmd:"" help:"List migrations, applied and pending."`
	Grants migrateGrants `cmd:"" help:"Print the SQL that gives a role the rights of a node; nothing is changed."`
}

type migrateUp struct {
	databaseFlags
	replicationFlag
	regionFlag
}

// Validate is explicit because each of the embedded has one.
func (c *migrateUp) Validate() error {
	return cmp.Or(c.databaseFlags.Validate(), c.replicationFlag.Validate(), c.regionFlag.Validate())
}

// Run migrates, and makes what changes are followed by as far as the user may:
// what it could not make is told and is no failure.
func (c *migrateUp) Run(ctx context.Context, t *terminal) error {
	url := cmp.Or(c.ReplicationURL, c.DatabaseURL) // a pooler may end the session that keeps others from migrating
	applied, err := admin.MigrateSchema(ctx, url)
	for _, m := range applied {
		fmt.Fprintf(t.out, "applied %s\n", m.Name)
	}
	if err != nil {
		return err
	}
	done, refused, err := admin.MakePublication(ctx, url)
	if err != nil {
		return err
	}
	if done != "" {
		fmt.Fprintln(t.out, done)
	}
	if refused != "" {
		fmt.Fprintf(t.out, "not made: the publication: %s\n", oneLine(refused))
	}
	slot, created, err := follower.CreateSlot(ctx, url, c.Region)
	switch {
	case err != nil: // nodes work without it, and make it once they can
		fmt.Fprintf(t.out, "not made: the slot: %s\n", oneLine(err.Error()))
	case created:
		fmt.Fprintf(t.out, "made the slot %s\n", slot)
	}
	if len(applied) == 0 && done == "" && !created {
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
	all, err := admin.MigrateStatus(ctx, c.DatabaseURL)
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

type migrateGrants struct {
	Role string `help:"The role of the nodes." required:"" placeholder:"NAME"`
}

// Run prints; whoever may grant reads it, and pipes it into psql.
func (c *migrateGrants) Run(_ context.Context, t *terminal) error {
	text, err := admin.Grants(c.Role)
	if err != nil {
		return usageError{fmt.Errorf("--role: %w", err)}
	}
	_, err = fmt.Fprint(t.out, text)
	return err
}
