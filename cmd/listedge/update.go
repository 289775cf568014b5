package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"listedge/origin"
)

// errNothingToUpdate: neither flag was given.
var errNothingToUpdate = errors.New("nothing to update: give --rate, --burst or both")

type workspaceUpdate struct {
	databaseFlags
	jsonFlag
	limitFlags
	ID uuid.UUID `arg:"" help:"The workspace."`
}

// Validate is explicit because each of the embedded has one.
func (c *workspaceUpdate) Validate() error { return validUpdate(c.databaseFlags, c.limitFlags) }

func validUpdate(d databaseFlags, l limitFlags) error {
	if l.Rate == nil && l.Burst == nil {
		return errNothingToUpdate
	}
	return cmp.Or(d.Validate(), l.Validate())
}

// Run changes the workspace's limit.
func (c *workspaceUpdate) Run(ctx context.Context, t *terminal) error {
	return withAdmin(ctx, c.databaseFlags, func(a *origin.Admin) error {
		w, err := a.UpdateWorkspace(ctx, c.ID, c.Rate, c.Burst)
		if err != nil {
			return err
		}
		return c.print(t, w, func() { fmt.Fprintln(t.out, "updated", w.ID) })
	})
}

type keyUpdate struct {
	databaseFlags
	jsonFlag
	limitFlags
	ID uuid.UUID `arg:"" help:"The key's id (not the key)."`
}

// Validate is explicit because each of the embedded has one.
func (c *keyUpdate) Validate() error { return validUpdate(c.databaseFlags, c.limitFlags) }

// Run changes the key's limit.
func (c *keyUpdate) Run(ctx context.Context, t *terminal) error {
	return withAdmin(ctx, c.databaseFlags, func(a *origin.Admin) error {
		k, err := a.UpdateKey(ctx, c.ID, c.Rate, c.Burst)
		if err != nil {
			return err
		}
		return c.print(t, k, func() { fmt.Fprintln(t.out, "updated", k.ID) })
	})
}
