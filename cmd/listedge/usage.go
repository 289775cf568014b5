package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"listedge/origin/admin"
	"listedge/origin/usage"
)

type usageCommand struct {
	DatabaseFlags
	jsonFlag
	Workspace uuid.UUID `help:"The workspace." required:""`
	Since     period    `help:"How far back, as 24h or 7d, at most 35d. The first hour counts as a whole." default:"24h" placeholder:"DURATION"`
}

// Validate refuses a period that is longer than usage is kept.
func (c *usageCommand) Validate() error {
	if time.Duration(c.Since) > usage.Kept {
		return fmt.Errorf("--since must be at most %dd", usage.Kept/(24*time.Hour))
	}
	return nil
}

// Run prints the usage. docs/OPERATIONS.md explains the columns.
func (c *usageCommand) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	u, err := a.Usage(ctx, c.Workspace, time.Duration(c.Since))
	const counts = "{{.Requests}}\t{{.Refused}}\t{{.NotModified}}\t{{.Bypassed}}\t{{.Bytes}}\t{{.Queries}}\t"
	return c.print(t, &u, err, "{{.WorkspaceID}}  since {{instant .Since}}\n\n"+
		"REQUESTS\t429S\t304S\tBYPASSED\tBYTES\tQUERIES\tLAST USED\tKEY\n"+
		"{{range .Keys}}"+counts+"{{instant .LastUsedAt}}\t{{.ID}}  {{if .Prefix}}{{.Prefix}}…  {{.Name}}{{else}}(deleted){{end}}\n{{end}}"+
		"{{with .Totals}}"+counts+"-\ttotal\n{{end}}{{if .Quota}}\nquota: "+quotaAndUse+"\n{{end}}")
}
