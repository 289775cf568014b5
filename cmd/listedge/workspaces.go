package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/limiter"
	"listedge/origin/admin"
	"listedge/origin/apikey"
)

type workspacesCommand struct {
	Create  workspaceCreate  `cmd:"" example:"--name Shop --rate 100 --tenant 42" help:"Create a workspace."`
	List    workspaceList    `cmd:"" example:"--json" help:"List workspaces."`
	Update  workspaceUpdate  `cmd:"" example:"ID --rate 200 --burst 600" help:"Change the limit, the quota or the tenant of a workspace, on all nodes at once."`
	Suspend workspaceSuspend `cmd:"" example:"ID" help:"Refuse all keys of a workspace (403)."`
	Resume  workspaceResume  `cmd:"" example:"ID" help:"Undo suspend."`
}

// LimitFlags set the rate and the burst of a token bucket.
type LimitFlags struct {
	Rate  *float64 `help:"Requests per second." placeholder:"R"`
	Burst *int32   `help:"Requests at once; of a new key or workspace twice its rate by default. Three times it bridges 2 s without Redis." placeholder:"B"`
}

// Validate refuses what the limiter could not enforce.
func (f *LimitFlags) Validate() error {
	l := apikey.LimitOf(f.Rate, f.Burst, apikey.DefaultLimit)
	if _, err := limiter.NewPolicy(l.Rate, l.Burst); err != nil {
		return errors.New("--" + strings.TrimPrefix(err.Error(), "limiter: "))
	}
	if !limiter.IsWholeRate(l.Rate) {
		return fmt.Errorf("--rate %v has more than six decimals", l.Rate)
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
	ChangeFlags
	jsonFlag
	LimitFlags
	TenantFlag
	Name  string        `help:"Name of the workspace." required:""`
	Quota *apikey.Quota `help:"Requests in each calendar day or month (UTC): N/day or N/month." placeholder:"Q"`
}

// TenantFlag is the tenant of a workspace.
type TenantFlag struct {
	ListsFlag
	Tenant *string `help:"Whose rows of the lists its keys read: a value of their tenant's column; of a new workspace its id if not given." placeholder:"T"`
}

// Validate reads the description, and refuses a tenant that no row has.
func (f *TenantFlag) Validate() error {
	if t := f.Tenant; t != nil && (*t == "" || len(*t) > list.MaxTenant || !utf8.ValidString(*t) || strings.ContainsRune(*t, 0)) {
		return fmt.Errorf("--tenant must be text of 1 to %d bytes", list.MaxTenant)
	}
	return f.ListsFlag.Validate()
}

// check returns the tenant; empty = none is given. It refuses one that no row of the lists can have.
func (f *TenantFlag) check(ctx context.Context, url string) (tenant string, err error) {
	if f.Tenant == nil {
		return "", nil
	}
	lists, err := f.Resolve(ctx, url)
	if err != nil {
		return "", err
	}
	var columns []string
	for _, l := range lists.Lists {
		switch {
		case l.Tenant < 0:
		case l.IsTenant(*f.Tenant):
			return *f.Tenant, nil
		default:
			c := l.Columns[l.Tenant]
			columns = append(columns, fmt.Sprintf("%s of %s is of type %s", c.Name, l.Table, c.Type.Name))
		}
	}
	if len(columns) == 0 { // every workspace sees all rows
		return *f.Tenant, nil
	}
	says := fmt.Sprintf("--tenant %q: no row can have it, which is written as Postgres prints it: %s", *f.Tenant, strings.Join(columns, ", "))
	if lists.BuiltIn {
		says += "; name your own lists with --lists FILE"
	}
	return "", usageError{Err: errors.New(says)}
}

// Validate refuses a burst that would have no effect.
func (c *workspaceCreate) Validate() error {
	if c.Burst != nil && c.Rate == nil {
		return errors.New("--burst needs --rate: without a rate a workspace has no limit of its own")
	}
	return validName(c.Name)
}

// Run creates a workspace. It warns if no list can have rows of the workspace: then --tenant was forgotten.
func (c *workspaceCreate) Run(ctx acting, t *terminal, a *admin.Conn) error {
	tenant, err := c.check(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	w, err := a.CreateWorkspace(ctx, c.Name, c.Rate, c.Burst, c.Quota, tenant)
	if err == nil && tenant == "" {
		lists, failed := c.Resolve(ctx, c.DatabaseURL)
		if failed == nil && !slices.ContainsFunc(lists.Lists, func(l *list.List) bool { return l.IsTenant(l.Owner(w.Tenant)) }) {
			l := lists.Lists[0]
			fmt.Fprintf(t.err, "no list has rows of the tenant %s: --tenant must be a value of the column %s of %s, as Postgres prints it\n",
				visible(w.Tenant), visible(l.Columns[l.Tenant].Name), visible(l.Table.String()))
		}
	}
	return c.print(t, w, err, "{{.ID}}\n")
}

type workspaceList struct {
	DatabaseFlags
	jsonFlag
}

// Run lists workspaces.
func (c *workspaceList) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	all, err := a.Workspaces(ctx)
	return c.print(t, all, err, "ID\tTENANT\tSTATE\tQUOTA\tNAME\n"+
		"{{range .}}{{.ID}}\t{{if eq .Tenant .ID.String}}its id{{else}}{{.Tenant}}{{end}}\t"+
		"{{if .SuspendedAt}}suspended {{instant .SuspendedAt}}{{else}}active{{end}}\t"+quotaAndUse+"\t{{.Name}}\n{{end}}")
}

// quotaAndUse renders a quota, and what was admitted in its period, like 1000/month, 41 admitted this month. That may be more than
// the quota, which begins full when it is set. Empty = none is set.
const quotaAndUse = "{{if .Quota}}{{.Quota.Requests}}/{{.Quota.Period}}, {{.QuotaUsed}} admitted this {{.Quota.Period}}{{end}}"

type workspaceSuspend struct{ OneFlags }

// Run suspends a workspace.
func (c *workspaceSuspend) Run(ctx acting, t *terminal, a *admin.Conn) error {
	w, err := a.SuspendWorkspace(ctx, c.ID)
	return c.print(t, w, err, "suspended {{.ID}}\n")
}

type workspaceResume struct{ OneFlags }

// Run resumes a workspace.
func (c *workspaceResume) Run(ctx acting, t *terminal, a *admin.Conn) error {
	w, err := a.ResumeWorkspace(ctx, c.ID)
	return c.print(t, w, err, "resumed {{.ID}}\n")
}

// OneFlags are the flags of a command that changes one workspace or key.
type OneFlags struct {
	ChangeFlags
	jsonFlag
	ID uuid.UUID `arg:"" help:"Id of the workspace or of the key (not the key itself)."`
}

type workspaceUpdate struct {
	OneFlags
	LimitFlags
	TenantFlag
	Quota *apikey.Quota `help:"Requests in each calendar day or month (UTC): N/day or N/month; none removes it." placeholder:"Q"`
}

// Validate requires something to change.
func (c *workspaceUpdate) Validate() error {
	if c.Rate == nil && c.Burst == nil && c.Quota == nil && c.Tenant == nil {
		return errors.New("nothing to update: give --rate, --burst, --quota or --tenant")
	}
	return nil
}

// Run changes the workspace's limit, quota and tenant.
func (c *workspaceUpdate) Run(ctx acting, t *terminal, a *admin.Conn) error {
	tenant, err := c.check(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	w, err := a.UpdateWorkspace(ctx, c.ID, c.Rate, c.Burst, c.Quota, tenant)
	return c.print(t, w, err, "updated {{.ID}}\n")
}
