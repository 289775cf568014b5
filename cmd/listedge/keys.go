package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"listedge/origin/admin"
)

type keysCommand struct {
	Create keyCreate `cmd:"" help:"Create a key and print it, once."`
	List   keyList   `cmd:"" help:"List the keys of a workspace."`
	Update keyUpdate `cmd:"" help:"Change the limit of a key, on all nodes at once."`
	Revoke keyRevoke `cmd:"" help:"Revoke a key."`
}

type keyCreate struct {
	databaseFlags
	jsonFlag
	limitFlags
	Workspace uuid.UUID      `help:"The workspace it opens." required:""`
	Name      string         `help:"What it is for."`
	Scopes    []string       `help:"What it may read." default:"items:read,contacts:read" enum:"items:read,contacts:read"`
	ExpiresIn *time.Duration `help:"How long it works; for ever if not given." placeholder:"DURATION"`
}

// Validate is explicit because each of the embedded has one.
func (c *keyCreate) Validate() error {
	err := cmp.Or(c.databaseFlags.Validate(), c.limitFlags.Validate())
	if c.Name != "" {
		err = cmp.Or(err, validName(c.Name))
	}
	return err
}

// Run creates a key.
func (c *keyCreate) Run(ctx context.Context, t *terminal) error {
	switch {
	case c.ExpiresIn != nil && *c.ExpiresIn <= 0:
		return usageError{fmt.Errorf("--expires-in must be positive")}
	case len(c.Scopes) == 0 || slices.Contains(c.Scopes, ""): // an unset variable must not widen rights
		return usageError{fmt.Errorf("--scopes must not be empty")}
	}
	slices.Sort(c.Scopes)
	c.Scopes = slices.Compact(c.Scopes)
	return withAdmin(ctx, c.databaseFlags, func(a *admin.Conn) error {
		k, err := a.CreateKey(ctx, admin.NewKey{
			Workspace: c.Workspace, Name: c.Name, Scopes: c.Scopes, Rate: c.Rate, Burst: c.Burst, ExpiresIn: c.ExpiresIn,
		})
		if err != nil {
			return err
		}
		return c.print(t, k, func() { fmt.Fprintln(t.out, k.Key) })
	})
}

type keyList struct {
	databaseFlags
	jsonFlag
	Workspace uuid.UUID `help:"The workspace." required:""`
	UnusedFor *days     `help:"Only keys that were neither used nor created for so long, as 90d or 24h." placeholder:"DURATION"`
}

// Validate is explicit because each of the embedded has one.
func (c *keyList) Validate() error {
	err := c.databaseFlags.Validate()
	if c.UnusedFor != nil {
		err = cmp.Or(err, checkPeriod("--unused-for", *c.UnusedFor, mostUnused))
	}
	return err
}

// mostUnused bounds --unused-for.
const mostUnused = 100 * 365 * 24 * time.Hour

// list returns the keys. It warns if usage is not counted for long enough to tell unused
// keys from others.
func (c *keyList) list(ctx context.Context, t *terminal, a *admin.Conn) ([]admin.Key, error) {
	if c.UnusedFor == nil {
		return a.Keys(ctx, c.Workspace)
	}
	since, err := a.UsageSince(ctx)
	if err != nil {
		return nil, err
	}
	if time.Since(since) < time.Duration(*c.UnusedFor) {
		fmt.Fprintf(t.err, "usage is counted since %s: a key that was last used before is listed, too\n", instant(&since))
	}
	return a.UnusedKeys(ctx, c.Workspace, time.Duration(*c.UnusedFor))
}

// Run lists keys.
func (c *keyList) Run(ctx context.Context, t *terminal) error {
	return withAdmin(ctx, c.databaseFlags, func(a *admin.Conn) error {
		list, err := c.list(ctx, t, a)
		if err == nil && len(list) == 0 {
			err = a.WorkspaceExists(ctx, c.Workspace)
		}
		if err != nil {
			return err
		}
		return c.print(t, list, func() {
			for _, k := range list {
				state := "active"
				switch {
				case k.RevokedAt != nil:
					state = "revoked " + instant(k.RevokedAt)
				case k.ExpiresAt != nil:
					state = "expires " + instant(k.ExpiresAt)
				}
				fmt.Fprintf(t.out, "%s  %s…  %-29s  used %-20s  %s  %s\n", k.ID, k.Prefix, state, instant(k.LastUsedAt), strings.Join(k.Scopes, ","), k.Name)
			}
		})
	})
}

type keyRevoke struct{ oneFlags }

// Run revokes a key.
func (c *keyRevoke) Run(ctx context.Context, t *terminal) error {
	return c.do(ctx, t, "revoked", func(a *admin.Conn) (any, error) { return a.RevokeKey(ctx, c.ID) })
}
