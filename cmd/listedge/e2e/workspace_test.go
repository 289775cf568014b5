package e2e

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"listedge/origin/admin"
)

// workspaceWithKey makes a workspace and a key that no test will exhaust, without
// the commands that do so, which take longer.
func workspaceWithKey(t *testing.T, databaseURL string) (workspace, key string) {
	t.Helper()
	conn := must1(admin.Open(t.Context(), databaseURL))
	defer conn.Close()
	made := must1(conn.CreateWorkspace(t.Context(), t.Name(), nil, nil, nil))
	rate, burst := 100_000.0, int32(100_000)
	k := must1(conn.CreateKey(t.Context(), admin.Key{WorkspaceID: made.ID, RatePerSecond: &rate, Burst: &burst}, nil))
	return made.ID.String(), k.Key
}

// newKeys makes keys with the default limit.
func newKeys(t *testing.T, databaseURL, workspace string, n int) (keys []string) {
	t.Helper()
	conn := must1(admin.Open(t.Context(), databaseURL))
	defer conn.Close()
	for range n {
		k := must1(conn.CreateKey(t.Context(), admin.Key{WorkspaceID: uuid.MustParse(workspace)}, nil))
		keys = append(keys, k.Key)
	}
	return keys
}

func newKeyFor(t *testing.T, databaseURL, workspace string, flags ...string) string {
	t.Helper()
	return strings.TrimSpace(command(t, append([]string{"keys", "create", "--database-url", databaseURL, "--workspace", workspace}, flags...)...))
}
