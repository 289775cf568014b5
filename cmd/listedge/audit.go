package main

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"listedge/origin/admin"
	"listedge/origin/audit"
)

type auditCommand struct {
	DatabaseFlags
	jsonFlag
	Workspace *uuid.UUID `help:"List only acts on this workspace and its keys." placeholder:"ID"`
	Key       *uuid.UUID `help:"List only acts on this key." placeholder:"ID"`
	Since     *period    `help:"How far back to list, as 24h or 7d." placeholder:"DURATION"`
	Limit     int        `help:"Greatest number of acts to list." default:"100" placeholder:"N"`
}

// Validate refuses a limit that would select nothing.
func (c *auditCommand) Validate() error {
	if c.Limit < 1 {
		return errors.New("--limit must be at least 1")
	}
	return nil
}

// Run lists acts of the audit log, newest first.
func (c *auditCommand) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	list, err := a.Audit(ctx, audit.Filter{Workspace: c.Workspace, Key: c.Key, Since: (*time.Duration)(c.Since), Limit: c.Limit})
	return c.print(t, list, err, "AT\tACTOR\tACTION\tSUBJECT\tDETAILS\n"+
		"{{range .}}{{instant .At}}\t{{.Actor}}\t{{.Action}}\t"+
		"{{if .KeyID}}key {{.KeyID}}{{else if .WorkspaceID}}workspace {{.WorkspaceID}}{{else}}-{{end}}\t{{json .Details}}\n{{end}}")
}
