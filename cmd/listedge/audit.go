package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// maxAuditLimit bounds the memory of one list.
const maxAuditLimit = 100_000

// Validate refuses what would select nothing by mistake.
func (c *auditCommand) Validate() error {
	switch {
	case c.Since != nil && *c.Since <= 0:
		return fmt.Errorf("--since must be positive")
	case c.Limit < 1 || c.Limit > maxAuditLimit:
		return fmt.Errorf("--limit must be from 1 to %d", maxAuditLimit)
	}
	return nil
}

// Run lists acts, newest first.
func (c *auditCommand) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	list, err := a.Audit(ctx, audit.Filter{Workspace: c.Workspace, Key: c.Key, Since: (*time.Duration)(c.Since), Limit: c.Limit})
	return c.print(t, list, err, func() {
		lines := [][]string{{"AT", "ACTOR", "ACTION", "SUBJECT", "DETAILS"}}
		for _, e := range list {
			lines = append(lines, []string{instant(&e.At), e.Actor, e.Action, subjectOf(e), summary(e.Details)})
		}
		t.table(lines)
	})
}

// subjectOf is what was acted on.
func subjectOf(e audit.Entry) string {
	switch {
	case e.KeyID != nil:
		return "key " + e.KeyID.String()
	case e.WorkspaceID != nil:
		return "workspace " + e.WorkspaceID.String()
	}
	return "-"
}

// summary is the details on one line, as "burst 10 → 20, ratePerSecond 5 → 7".
func summary(details map[string]any) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(details)) {
		value := details[name]
		if change, ok := value.(map[string]any); ok && slices.Equal(slices.Sorted(maps.Keys(change)), []string{"from", "to"}) { // an audit.Change
			parts = append(parts, name+" "+valueText(change["from"])+" → "+valueText(change["to"]))
		} else if value != nil {
			parts = append(parts, name+" "+valueText(value))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// valueText is JSON, which has no control characters.
func valueText(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic("BUG: " + err.Error()) // it was read from JSON
	}
	return string(text)
}
