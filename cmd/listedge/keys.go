package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"listedge/origin/admin"
	"listedge/origin/apikey"
)

type keysCommand struct {
	Create keyCreate `cmd:"" example:"--workspace ID --name Sync --scopes items:read --expires-in 720h" help:"Create a key and print it, once."`
	List   keyList   `cmd:"" example:"--workspace ID --unused-for 90d" help:"List the keys of a workspace."`
	Show   keyShow   `cmd:"" example:"ID" help:"Print all that is stored of a key, and whether it works."`
	Update keyUpdate `cmd:"" example:"ID --rate 20" help:"Change the limit of a key, on all nodes at once."`
	Rotate keyRotate `cmd:"" example:"ID --overlap 7d" help:"Replace a key: create a new one and print it, once. Both work until --overlap is over."`
	Revoke keyRevoke `cmd:"" example:"ID" help:"Revoke a key."`
}

type keyCreate struct {
	ChangeFlags
	jsonFlag
	LimitFlags
	Workspace uuid.UUID `help:"Workspace of the key." required:""`
	Name      string    `help:"Name of the key, for people."`
	Scopes    []string  `help:"Lists that the key may read." default:"${scopes}" enum:"${scopes}"`
	ExpiresIn *days     `help:"How long the key works, as 12h or 90d; for ever if not given." placeholder:"DURATION"`
}

// Validate refuses an empty name, scope or period, which may be a variable that is not set.
func (c *keyCreate) Validate() error {
	switch {
	case len(c.Scopes) == 0 || slices.Contains(c.Scopes, ""): // an unset variable
		return errors.New("--scopes must not be empty")
	case c.Name != "" && validName(c.Name) != nil:
		return validName(c.Name)
	}
	return checkPeriod("--expires-in", c.ExpiresIn, 0)
}

// Run creates a key.
func (c *keyCreate) Run(ctx acting, t *terminal, a *admin.Conn) error {
	slices.Sort(c.Scopes)
	k, err := a.CreateKey(ctx, admin.NewKey{
		Workspace: c.Workspace, Name: c.Name, Scopes: slices.Compact(c.Scopes), Rate: c.Rate, Burst: c.Burst, ExpiresIn: (*time.Duration)(c.ExpiresIn),
	})
	return c.print(t, k, err, func() { fmt.Fprintln(t.out, k.Key) })
}

type keyList struct {
	DatabaseFlags
	jsonFlag
	Workspace uuid.UUID `help:"The workspace." required:""`
	UnusedFor *days     `help:"List only keys that were neither used nor created in this time, as 90d or 24h." placeholder:"DURATION"`
}

// Validate refuses a period that is not positive.
func (c *keyList) Validate() error { return checkPeriod("--unused-for", c.UnusedFor, 0) }

// list returns the workspace's keys. It warns if usage has not been counted for long enough to
// tell unused keys from others.
func (c *keyList) list(ctx context.Context, t *terminal, a *admin.Conn) ([]admin.Key, error) {
	if c.UnusedFor == nil {
		return a.Keys(ctx, c.Workspace)
	}
	unusedFor := time.Duration(*c.UnusedFor)
	list, since, err := a.UnusedKeys(ctx, c.Workspace, unusedFor)
	if err == nil && len(list) > 0 && time.Since(since) < unusedFor {
		fmt.Fprintf(t.err, "usage is counted since %s: a key that was last used before is listed, too\n", instant(&since))
	}
	return list, err
}

// Run lists keys.
func (c *keyList) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	list, err := c.list(ctx, t, a)
	if err == nil && len(list) == 0 {
		err = a.WorkspaceExists(ctx, c.Workspace)
	}
	return c.print(t, list, err, func() {
		lines := [][]string{{"ID", "BEGINS WITH", "STATE", "LAST USED", "SCOPES", "NAME"}}
		for _, k := range list {
			lines = append(lines, []string{k.ID.String(), k.Prefix + "…", stateOf(k), instant(k.LastUsedAt), strings.Join(k.Scopes, ","), k.Name})
		}
		t.table(lines)
	})
}

// stateOf is the state of a key, and since or until when.
func stateOf(k admin.Key) string {
	at := k.ExpiresAt
	switch {
	case k.State == admin.KeyActive:
		return string(k.State)
	case k.State == admin.KeyRevoked, k.RevokedAt != nil && (at == nil || k.RevokedAt.Before(*at)): // a revocation to come ends it, too
		at = k.RevokedAt
	}
	return string(k.State) + " " + instant(at)
}

type keyShow struct {
	DatabaseFlags
	jsonFlag
	ID uuid.UUID `arg:"" help:"Id of the key (not the key itself)."`
}

// Run prints a key.
func (c *keyShow) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	k, err := a.Key(ctx, c.ID)
	return c.print(t, k, err, func() {
		limit := apikey.LimitOf(k.RatePerSecond, k.Burst, apikey.DefaultLimit) // as nodes enforce it
		t.table([][]string{
			{"id", k.ID.String()}, {"workspace", k.WorkspaceID.String()}, {"name", k.Name}, {"begins with", k.Prefix}, {"state", stateOf(k)},
			{"scopes", strings.Join(k.Scopes, ",")}, {"rate", fmt.Sprint(limit.Rate)}, {"burst", fmt.Sprint(limit.Burst)},
			{"created", instant(&k.CreatedAt)}, {"last used", instant(k.LastUsedAt)}, {"expires", instant(k.ExpiresAt)}, {"revoked", instant(k.RevokedAt)},
		})
	})
}

type keyRotate struct {
	OneFlags
	Overlap   days  `help:"How long the old key still works, as 1h or 7d; 0 = it ends at once." default:"24h" placeholder:"DURATION"`
	ExpiresIn *days `help:"How long the new key works; as long as the old one would have if not given." placeholder:"DURATION"`
}

// Validate refuses a negative overlap, and a new key that would never be valid.
func (c *keyRotate) Validate() error {
	if c.Overlap < 0 {
		return errors.New("--overlap must not be negative")
	}
	return checkPeriod("--expires-in", c.ExpiresIn, 0)
}

// Run rotates a key. Standard output has the new key alone, for a script to read.
func (c *keyRotate) Run(ctx acting, t *terminal, a *admin.Conn) error {
	k, err := a.RotateKey(ctx, c.ID, time.Duration(c.Overlap), (*time.Duration)(c.ExpiresIn))
	return c.print(t, k, err, func() {
		fmt.Fprintln(t.out, k.Key.Key)
		fmt.Fprintf(t.err, "key %s replaces %s, which works until %s\n", k.ID, k.Replaces.ID, instant(k.Replaces.ExpiresAt))
		if k.ExpiresAt != nil { // perhaps because the old one had been replaced before
			fmt.Fprintf(t.err, "the new key works until %s, as the old one would have, or as --expires-in says\n", instant(k.ExpiresAt))
		}
	})
}

type keyRevoke struct{ OneFlags }

// Run revokes a key.
func (c *keyRevoke) Run(ctx acting, t *terminal, a *admin.Conn) error {
	return c.done(t, "revoked")(a.RevokeKey(ctx, c.ID))
}
