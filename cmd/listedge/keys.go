package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/common/model"

	"listedge/origin/admin"
)

type keysCommand struct {
	Create keyCreate `cmd:"" example:"--workspace ID --name Sync --scopes items:read --expires-in 720h" help:"Create a key and print it, once."`
	List   keyList   `cmd:"" example:"--workspace ID --unused-for 90d" help:"List the keys of a workspace."`
	Show   keyShow   `cmd:"" example:"ID" help:"Print all that is stored of a key, and whether it works."`
	Import keyImport `cmd:"" example:"--workspace ID --hash sha256 keys.csv" help:"Import keys of another maker by their hashes: customers keep their keys."`
	Update keyUpdate `cmd:"" example:"ID --rate 20" help:"Change the limit of a key, on all nodes at once."`
	Rotate keyRotate `cmd:"" example:"ID --overlap 7d" help:"Replace a key: create a new one and print it, once. Both work until --overlap is over."`
	Revoke keyRevoke `cmd:"" example:"ID" help:"Revoke a key."`
}

type keyCreate struct {
	ChangeFlags
	jsonFlag
	LimitFlags
	ListsFlag
	Workspace uuid.UUID `help:"Workspace of the key." required:""`
	Name      string    `help:"Name of the key, for people."`
	Scopes    []string  `help:"Lists that the key may read, each as items:read; all if not given." placeholder:"SCOPES"`
	ExpiresIn *period   `help:"How long the key works, as 12h or 90d; for ever if not given." placeholder:"DURATION"`
}

// Validate refuses scopes that no list has, and an empty name or scope, which may be a variable that is not set.
func (c *keyCreate) Validate() error {
	err := c.ListsFlag.Validate() // which kong calls later
	if err != nil {
		return err
	}
	known := c.Description.Scopes()
	if c.Scopes == nil {
		c.Scopes = known
	}
	err = validScopes(c.Scopes, known)
	if err == nil && c.Name != "" {
		err = validName(c.Name)
	}
	return err
}

// validScopes refuses scopes that no list has, and an empty one, which may be a variable that is not set.
func validScopes(scopes, known []string) error {
	unknown := slices.IndexFunc(scopes, func(s string) bool { return !slices.Contains(known, s) })
	switch {
	case len(scopes) == 0 || slices.Contains(scopes, ""):
		return errors.New("--scopes must not be empty")
	case unknown >= 0:
		return fmt.Errorf("--scopes: no list has the scope %q; known are %s", scopes[unknown], strings.Join(known, ","))
	}
	return nil
}

// Run creates a key.
func (c *keyCreate) Run(ctx acting, t *terminal, a *admin.Conn) error {
	slices.Sort(c.Scopes)
	k, err := a.CreateKey(ctx, admin.Key{
		WorkspaceID: c.Workspace, Name: c.Name, Scopes: slices.Compact(c.Scopes), RatePerSecond: c.Rate, Burst: c.Burst,
	}, (*time.Duration)(c.ExpiresIn))
	return c.print(t, k, err, "{{.Key}}\n")
}

type keyList struct {
	DatabaseFlags
	jsonFlag
	Workspace uuid.UUID `help:"The workspace." required:""`
	UnusedFor *period   `help:"List only keys that were neither used nor created in this time, as 90d or 24h." placeholder:"DURATION"`
}

// Run lists keys. It warns if usage has not been counted for long enough to tell unused keys from
// others.
func (c *keyList) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	all, err := a.Keys(ctx, c.Workspace, (*time.Duration)(c.UnusedFor))
	if c.UnusedFor != nil && len(all) > 0 {
		var since time.Time
		since, err = a.UsageSince(ctx)
		if err == nil && time.Since(since) < time.Duration(*c.UnusedFor) {
			fmt.Fprintf(t.err, "usage is counted since %s: a key that was last used before is listed, too\n", instant(&since))
		}
	}
	return c.print(t, all, err, "ID\tBEGINS WITH\tSTATE\tENDS\tLAST USED\tSCOPES\tNAME\n"+
		"{{range .}}{{.ID}}\t{{.Prefix}}…\t{{.State}}\t{{instant .Ends}}\t{{instant .LastUsedAt}}\t{{join .Scopes `,`}}\t{{.Name}}\n{{end}}")
}

type keyShow struct {
	DatabaseFlags
	jsonFlag
	ID uuid.UUID `arg:"" help:"Id of the key (not the key itself)."`
}

// Run prints a key.
func (c *keyShow) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	k, err := a.Key(ctx, c.ID)
	return c.print(t, k, err, "{{fields .}}")
}

type keyUpdate struct {
	OneFlags
	LimitFlags
}

// Validate requires something to change.
func (c *keyUpdate) Validate() error {
	if c.Rate == nil && c.Burst == nil {
		return errors.New("nothing to update: give --rate, --burst or both")
	}
	return nil
}

// Run changes the key's limit.
func (c *keyUpdate) Run(ctx acting, t *terminal, a *admin.Conn) error {
	k, err := a.UpdateKey(ctx, c.ID, c.Rate, c.Burst)
	return c.print(t, k, err, "updated {{.ID}}\n")
}

type keyRotate struct {
	OneFlags
	Overlap   model.Duration `help:"How long the old key still works, as 1h or 7d; 0 = it ends at once." default:"24h" placeholder:"DURATION"`
	ExpiresIn *period        `help:"How long the new key works; as long as the old one would have if not given." placeholder:"DURATION"`
}

// Run rotates a key. Standard output has the new key alone, for a script to read.
func (c *keyRotate) Run(ctx acting, t *terminal, a *admin.Conn) error {
	k, err := a.RotateKey(ctx, c.ID, time.Duration(c.Overlap), (*time.Duration)(c.ExpiresIn))
	if err == nil {
		fmt.Fprintf(t.err, "key %s replaces %s, which works until %s\n", k.ID, k.Replaces.ID, instant(k.Replaces.ExpiresAt))
		if k.ExpiresAt != nil { // perhaps because the old one had been replaced before
			fmt.Fprintf(t.err, "the new key works until %s, as the old one would have, or as --expires-in says\n", instant(k.ExpiresAt))
		}
	}
	return c.print(t, k, err, "{{.Key.Key}}\n")
}

type keyRevoke struct{ OneFlags }

// Run revokes a key.
func (c *keyRevoke) Run(ctx acting, t *terminal, a *admin.Conn) error {
	k, err := a.RevokeKey(ctx, c.ID)
	return c.print(t, k, err, "revoked {{.ID}}\n")
}
