package main

import (
	"context"
	"encoding/json"
	"fmt"
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
	Since     *days      `help:"How far back to list, as 24h or 7d." placeholder:"DURATION"`
	Limit     int        `help:"Greatest number of acts to list." default:"100" placeholder:"N"`
}

// maxAuditLimit is the greatest --limit: all acts of a list are in memory at once.
const maxAuditLimit = 100_000

// Validate refuses a limit and a period that would select nothing, or too much.
func (c *auditCommand) Validate() error {
	if c.Limit < 1 || c.Limit > maxAuditLimit {
		return fmt.Errorf("--limit must be from 1 to %d", maxAuditLimit)
	}
	return checkPeriod("--since", c.Since, 0)
}

// Run lists acts of the audit log, newest first.
func (c *auditCommand) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	list, err := a.Audit(ctx, audit.Filter{Workspace: c.Workspace, Key: c.Key, Since: (*time.Duration)(c.Since), Limit: c.Limit})
	return c.print(t, list, err, func() {
		lines := [][]string{{"AT", "ACTOR", "ACTION", "SUBJECT", "DETAILS"}}
		for _, e := range list {
			details, _ := json.Marshal(e.Details) // which was read from JSON
			lines = append(lines, []string{instant(&e.At), e.Actor, e.Action, subjectOf(e), string(details)})
		}
		t.table(lines)
	})
}

// subjectOf names what an act changed: a key or a workspace.
func subjectOf(e audit.Entry) string {
	switch {
	case e.KeyID != nil:
		return "key " + e.KeyID.String()
	case e.WorkspaceID != nil:
		return "workspace " + e.WorkspaceID.String()
	}
	return "-"
}
