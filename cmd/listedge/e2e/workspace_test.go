package e2e

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"listedge/origin/admin"
)

// workspaceWithKey makes a workspace and a key that no test will exhaust, without
// the commands that do so: under the race detector each of them takes 0.1 s.
func workspaceWithKey(t *testing.T, databaseURL string) (workspace, key string) {
	t.Helper()
	conn, err := admin.Open(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	made, err := conn.CreateWorkspace(t.Context(), t.Name(), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	rate, burst := 100_000.0, int32(100_000)
	k, err := conn.CreateKey(t.Context(), admin.NewKey{Workspace: made.ID, Rate: &rate, Burst: &burst})
	if err != nil {
		t.Fatal(err)
	}
	return made.ID.String(), k.Key
}

// newKeys makes keys with the default limit.
func newKeys(t *testing.T, databaseURL, workspace string, n int) (keys []string) {
	t.Helper()
	conn, err := admin.Open(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range n {
		k, err := conn.CreateKey(t.Context(), admin.NewKey{Workspace: uuid.MustParse(workspace)})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k.Key)
	}
	return keys
}

func newKeyFor(t *testing.T, databaseURL, workspace string, flags ...string) string {
	t.Helper()
	return strings.TrimSpace(command(t, append([]string{"keys", "create", "--database-url", databaseURL, "--workspace", workspace}, flags...)...))
}
