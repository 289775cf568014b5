package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"

	"listedge/origin/audit"
)

// Where a table or a column is missing, commands say what to do.
func TestCommandsOnAnOlderSchema(t *testing.T) {
	t.Parallel()
	for _, version := range []int64{0, 8} {
		url := emptyDatabase(t)
		if version > 0 {
			if err := bareGoose(t.Context(), url, func(p *goose.Provider) error { _, err := p.UpTo(t.Context(), version); return err }); err != nil {
				t.Fatal(err)
			}
		}
		c, id := openAdmin(t, url), uuid.New()
		if version > 0 {
			exec(t, c.conn, "INSERT INTO workspaces (id, name) VALUES ($1, 'W')", id)
		}
		ctx := t.Context()
		for name, run := range map[string]func() error{
			"workspaces create":  func() error { _, err := c.CreateWorkspace(ctx, "W", nil, nil, nil); return err },
			"workspaces list":    func() error { _, err := c.Workspaces(ctx); return err },
			"workspaces suspend": func() error { _, err := c.SuspendWorkspace(ctx, id); return err },
			"keys create":        func() error { _, err := c.CreateKey(ctx, NewKey{Workspace: id}); return err },
			"keys list":          func() error { _, err := c.Keys(ctx, id); return err },
			"keys list unused":   func() error { _, err := c.UnusedKeys(ctx, id, time.Hour); return err },
			"keys rotate":        func() error { _, err := c.RotateKey(ctx, id, 0, nil); return err },
			"usage":              func() error { _, err := c.Usage(ctx, id, time.Hour); return err },
			"usage since":        func() error { _, err := c.UsageSince(ctx); return err },
			"audit":              func() error { _, err := c.Audit(ctx, audit.Filter{Limit: 1}); return err },
		} {
			if err := run(); err == nil || !strings.HasSuffix(err.Error(), ": run `listedge migrate up`") || strings.Count(err.Error(), "run `") != 1 {
				t.Errorf("version %d: %s: %v", version, name, err)
			}
		}
	}
}
