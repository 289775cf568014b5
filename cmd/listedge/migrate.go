package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"listedge/cmd/listedge/node"
	"listedge/origin/admin"
	"listedge/origin/follower"
)

type migrateCommand struct {
	Up     migrateUp     `cmd:"" help:"Apply pending migrations. Several may run at once."`
	Status migrateStatus `cmd:"" example:"--json" help:"List migrations, applied and pending."`
	Grants migrateGrants `cmd:"" example:"--role listedge_node" help:"Print the SQL that gives a role the rights of a node; changes nothing."`

	DropSlot migrateDropSlot `cmd:"" example:"--region eu" help:"Drop the replication slot of a fleet whose nodes have all been stopped."`
	Remove   migrateRemove   `cmd:"" example:"--yes" help:"Print the SQL that removes all that listedge has made in the database; with --yes, run it."`
}

type migrateUp struct {
	ChangeFlags
	ReplicationFlag
	ListsFlag
	node.RegionFlag
}

// Run migrates the database. It also makes the publication and the slot if the user has the
// rights; without them it prints what it could not make, and does not fail.
func (c *migrateUp) Run(ctx acting, t *terminal) error {
	url := cmp.Or(c.ReplicationURL, c.DatabaseURL) // a pooler may end the session that holds the lock against other migrations
	lists, err := c.Resolve(ctx, url)
	if err != nil {
		return err
	}
	done, err := admin.MigrateUp(ctx, url, lists)
	for _, line := range done {
		fmt.Fprintln(t.out, oneLine(line))
	}
	if err != nil {
		return err
	}
	slot, created, err := follower.CreateSlot(ctx, url, c.Region, lists)
	switch {
	case errors.Is(err, follower.ErrTemporary):
		fmt.Fprintf(t.out, "not made: the slot: %s\n", err)
	case err != nil: // nodes make it once they can
		fmt.Fprintf(t.out, "not made: the slot, which nodes make as soon as they can: %s\n", oneLine(err.Error()))
	case created:
		fmt.Fprintf(t.out, "made the slot %s\n", slot)
	}
	if len(done) == 0 && !created {
		fmt.Fprintln(t.out, "nothing to apply")
	}
	return nil
}

type migrateStatus struct {
	DatabaseFlags
	jsonFlag
}

// Run lists all migrations, and which of them the database has.
func (c *migrateStatus) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	all, err := admin.MigrateStatus(ctx, a)
	return c.print(t, all, err, "MIGRATION\tSTATE\n"+
		"{{range .}}{{.Name}}\t{{if .AppliedAt.IsZero}}pending{{else}}applied {{instant .AppliedAt}}{{end}}\n{{end}}")
}

type migrateGrants struct {
	ListsFlag
	Role string `help:"The role of the nodes." required:"" placeholder:"NAME"`
}

// Run prints the SQL that grants a role its rights, to be piped into psql by an owner.
func (c *migrateGrants) Run(_ context.Context, t *terminal) error {
	text, err := admin.Grants(c.Role, c.Description.Tables())
	if err != nil {
		return usageError{Err: fmt.Errorf("--role: %w", err)}
	}
	_, err = fmt.Fprint(t.out, text)
	return err
}

type migrateDropSlot struct {
	DatabaseFlags
	ReplicationFlag
	node.RegionFlag
}

// Run drops the region's replication slot, unless a node follows through it.
func (c *migrateDropSlot) Run(ctx context.Context, t *terminal) error {
	name, dropped, err := follower.DropSlot(ctx, cmp.Or(c.ReplicationURL, c.DatabaseURL), c.Region)
	switch {
	case err != nil:
		return err
	case dropped:
		fmt.Fprintln(t.out, "dropped the slot", name)
	default:
		fmt.Fprintln(t.out, "there is no slot", name)
	}
	return nil
}

type migrateRemove struct {
	DatabaseFlags
	ReplicationFlag
	ListsFlag
	Yes bool `help:"Run the SQL."`
}

// Run prints the SQL that removes listedge from the database; with --yes it also runs it.
func (c *migrateRemove) Run(ctx context.Context, t *terminal) error {
	url := cmp.Or(c.ReplicationURL, c.DatabaseURL)
	lists, err := c.Resolve(ctx, url)
	if err != nil {
		return err
	}
	fmt.Fprint(t.out, admin.RemovalSQL(lists))
	if !c.Yes {
		fmt.Fprintln(t.out, "-- Nothing was changed: --yes runs this in a transaction.")
		return nil
	}
	err = admin.Remove(ctx, url, lists)
	if err != nil {
		return err
	}
	fmt.Fprintln(t.out, "-- Removed.")
	return nil
}
