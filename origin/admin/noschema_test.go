package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/origin/audit"
)

// Where a table or a column is missing, commands say what to do.
func TestCommandsWithoutASchema(t *testing.T) {
	t.Parallel()
	c, id := openAdmin(t, emptyDatabase(t)), uuid.New()
	ctx := t.Context()
	for name, run := range map[string]func() error{
		"workspaces create":  func() error { _, err := c.CreateWorkspace(ctx, "W", nil, nil, nil); return err },
		"workspaces list":    func() error { _, err := c.Workspaces(ctx); return err },
		"workspaces suspend": func() error { _, err := c.SuspendWorkspace(ctx, id); return err },
		"keys create":        func() error { _, err := c.CreateKey(ctx, Key{WorkspaceID: id}, nil); return err },
		"keys list":          func() error { _, err := c.Keys(ctx, id, nil); return err },
		"keys list unused":   func() error { _, err := c.UsageSince(ctx); return err },
		"keys rotate":        func() error { _, err := c.RotateKey(ctx, id, 0, nil); return err },
		"usage":              func() error { _, err := c.Usage(ctx, id, time.Hour); return err },
		"audit":              func() error { _, err := c.Audit(ctx, audit.Filter{Limit: 1}); return err },
	} {
		if err := run(); err == nil || !strings.Contains(err.Error(), ": run `listedge migrate up`;") || strings.Count(err.Error(), "run `") != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
