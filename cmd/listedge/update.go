package main

import (
	"cmp"
	"context"
	"errors"

	"listedge/origin/admin"
)

// errNothingToUpdate: neither flag was given.
var errNothingToUpdate = errors.New("nothing to update: give --rate, --burst or both")

// updateFlags change the limit of a workspace or a key.
type updateFlags struct {
	oneFlags
	limitFlags
}

// Validate is explicit because each of the embedded has one.
func (f *updateFlags) Validate() error {
	if f.Rate == nil && f.Burst == nil {
		return errNothingToUpdate
	}
	return cmp.Or(f.databaseFlags.Validate(), f.limitFlags.Validate())
}

type workspaceUpdate struct{ updateFlags }

// Run changes the workspace's limit.
func (c *workspaceUpdate) Run(ctx context.Context, t *terminal) error {
	return c.do(ctx, t, "updated", func(a *admin.Conn) (any, error) { return a.UpdateWorkspace(ctx, c.ID, c.Rate, c.Burst) })
}

type keyUpdate struct{ updateFlags }

// Run changes the key's limit.
func (c *keyUpdate) Run(ctx context.Context, t *terminal) error {
	return c.do(ctx, t, "updated", func(a *admin.Conn) (any, error) { return a.UpdateKey(ctx, c.ID, c.Rate, c.Burst) })
}
