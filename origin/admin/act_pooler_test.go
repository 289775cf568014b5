package admin

import (
	"strings"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/audit"
)

// A change and its row are a transaction, which a pooler may or may not know.
func TestActsThroughAPooler(t *testing.T) {
	t.Parallel()
	for mode, works := range map[string]bool{"session": true, "transaction": true, "statement": false} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			_, through := sandboxtest.PgBouncer(t, url, map[string]string{"pool_mode": mode})
			c := openAdmin(t, through)
			w, err := c.CreateWorkspace(t.Context(), "W", nil, nil, nil)
			if !works {
				if err == nil || !strings.Contains(err.Error(), "statement pooling mode") {
					t.Error(err)
				}
				return
			}
			must(err)
			k := must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil))
			must1(c.RotateKey(t.Context(), k.ID, 0, nil))
			if list := entries(t, c, audit.Filter{Workspace: &w.ID}); len(list) != 3 {
				t.Errorf("%+v", list)
			}
		})
	}
}
