package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"listedge/limiter"
	"listedge/origin/admin"
	"listedge/origin/apikey"
)

type workspacesCommand struct {
	Create  workspaceCreate  `cmd:"" help:"Create a workspace."`
	List    workspaceList    `cmd:"" help:"List workspaces."`
	Update  workspaceUpdate  `cmd:"" help:"Change the limit or the quota of a workspace, on all nodes at once."`
	Suspend workspaceSuspend `cmd:"" help:"Refuse all keys of a workspace (403)."`
	Resume  workspaceResume  `cmd:"" help:"Undo suspend."`
}

// withAdmin calls do with a connection to the database.
func withAdmin(ctx context.Context, f databaseFlags, do func(*admin.Conn) error) error {
	conn, err := admin.Open(ctx, f.DatabaseURL)
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(conn)
}

// changeFlags are for commands that change the database and name who does it.
type changeFlags struct {
	databaseFlags
	actorFlag
}

// Validate is explicit because each embedded struct has one.
func (f *changeFlags) Validate() error {
	return cmp.Or(f.databaseFlags.Validate(), f.actorFlag.Validate())
}

// change calls do with a connection to the database and a context that names the actor.
func (f *changeFlags) change(ctx context.Context, do func(context.Context, *admin.Conn) error) error {
	return withAdmin(ctx, f.databaseFlags, func(a *admin.Conn) error { return do(f.acting(ctx), a) })
}

// limitFlags set the rate and the burst of a token bucket.
type limitFlags struct {
	Rate  *float64 `help:"Requests per second." placeholder:"R"`
	Burst *int32   `help:"Requests at once; twice the rate if not given." placeholder:"B"`
}

// Validate refuses what the limiter could not enforce.
func (f *limitFlags) Validate() error {
	l := apikey.LimitOf(f.Rate, f.Burst, apikey.DefaultLimit)
	if _, err := limiter.NewPolicy(l.Rate, l.Burst); err != nil {
		return err
	}
	if !limiter.IsWholeRate(l.Rate) {
		return fmt.Errorf("--rate: %v has more than six decimals", l.Rate)
	}
	return nil
}

// validName refuses names that are empty or contain line breaks, which would break the
// output of list.
func validName(name string) error {
	if strings.TrimSpace(name) == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Errorf("--name must be text without control characters, and not empty")
	}
	return nil
}

type workspaceCreate struct {
	changeFlags
	jsonFlag
	limitFlags
	Name  string        `help:"Name of the workspace." required:""`
	Quota *apikey.Quota `help:"Requests in each calendar day or month (UTC): N/day or N/month." placeholder:"Q"`
}

// Validate is explicit because each embedded struct has one.
func (c *workspaceCreate) Validate() error {
	return cmp.Or(c.changeFlags.Validate(), c.limitFlags.Validate(), validName(c.Name))
}

// Run creates a workspace.
func (c *workspaceCreate) Run(ctx context.Context, t *terminal) error {
	if c.Burst != nil && c.Rate == nil {
		return usageError{fmt.Errorf("--burst needs --rate: without a rate a workspace has no limit of its own")}
	}
	return c.change(ctx, func(ctx context.Context, a *admin.Conn) error {
		w, err := a.CreateWorkspace(ctx, c.Name, c.Rate, c.Burst, c.Quota)
		if err != nil {
			return err
		}
		return c.print(t, w, func() { fmt.Fprintln(t.out, w.ID) })
	})
}

type workspaceList struct {
	databaseFlags
	jsonFlag
}

// Run lists workspaces.
func (c *workspaceList) Run(ctx context.Context, t *terminal) error {
	return withAdmin(ctx, c.databaseFlags, func(a *admin.Conn) error {
		list, err := a.Workspaces(ctx)
		if err != nil {
			return err
		}
		return c.print(t, list, func() {
			for _, w := range list {
				state := "active"
				if w.SuspendedAt != nil {
					state = "suspended " + instant(w.SuspendedAt)
				}
				quota := ""
				if q := w.Quota; q != nil {
					quota = fmt.Sprintf("%d/%s", q.Requests, q.Period)
				}
				fmt.Fprintf(t.out, "%s  %-31s  %-16s  %s\n", w.ID, state, quota, w.Name)
			}
		})
	})
}

type workspaceSuspend struct{ oneFlags }

// Run suspends a workspace.
func (c *workspaceSuspend) Run(ctx context.Context, t *terminal) error {
	return c.do(ctx, t, "suspended", func(ctx context.Context, a *admin.Conn) (any, error) { return a.SuspendWorkspace(ctx, c.ID) })
}

type workspaceResume struct{ oneFlags }

// Run resumes a workspace.
func (c *workspaceResume) Run(ctx context.Context, t *terminal) error {
	return c.do(ctx, t, "resumed", func(ctx context.Context, a *admin.Conn) (any, error) { return a.ResumeWorkspace(ctx, c.ID) })
}

// oneFlags are the flags of a command that changes one workspace or key.
type oneFlags struct {
	changeFlags
	jsonFlag
	ID uuid.UUID `arg:"" help:"Id of the workspace or of the key (not the key itself)."`
}

// do makes the change and prints the changed row, or without --json the word done and
// the id.
func (f oneFlags) do(ctx context.Context, t *terminal, done string, change func(context.Context, *admin.Conn) (any, error)) error {
	return f.change(ctx, func(ctx context.Context, a *admin.Conn) error {
		row, err := change(ctx, a)
		if err != nil {
			return err
		}
		return f.print(t, row, func() { fmt.Fprintln(t.out, done, f.ID) })
	})
}

// errNothingToUpdate: no flag was given.
var errNothingToUpdate = errors.New("nothing to update: give --rate, --burst or both")

// updateFlags change the limit of a workspace or a key.
type updateFlags struct {
	oneFlags
	limitFlags
}

// Validate is explicit because each embedded struct has one.
func (f *updateFlags) Validate() error {
	if f.Rate == nil && f.Burst == nil {
		return errNothingToUpdate
	}
	return cmp.Or(f.changeFlags.Validate(), f.limitFlags.Validate())
}

type workspaceUpdate struct {
	updateFlags
	Quota *apikey.Quota `help:"Requests in each calendar day or month (UTC): N/day or N/month; none removes it." placeholder:"Q"`
}

// Validate accepts a quota alone.
func (c *workspaceUpdate) Validate() error {
	if err := c.updateFlags.Validate(); err != errNothingToUpdate {
		return err
	}
	if c.Quota == nil {
		return errors.New("nothing to update: give --rate, --burst or --quota")
	}
	return c.changeFlags.Validate()
}

// Run changes the workspace's limit and quota.
func (c *workspaceUpdate) Run(ctx context.Context, t *terminal) error {
	return c.do(ctx, t, "updated", func(ctx context.Context, a *admin.Conn) (any, error) {
		return a.UpdateWorkspace(ctx, c.ID, c.Rate, c.Burst, c.Quota)
	})
}

type keyUpdate struct{ updateFlags }

// Run changes the key's limit.
func (c *keyUpdate) Run(ctx context.Context, t *terminal) error {
	return c.do(ctx, t, "updated", func(ctx context.Context, a *admin.Conn) (any, error) { return a.UpdateKey(ctx, c.ID, c.Rate, c.Burst) })
}
