package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// newKey is what `keys create --json` prints.
type newKey struct{ ID, Key string }

// rotated is what `keys rotate --json` prints.
type rotated struct {
	ID, Key, WorkspaceID string
	Scopes               []string
	RatePerSecond        float64
	Burst                int
	Replaces             struct{ ID, ExpiresAt string }
}

func rotate(t *testing.T, url, id string, flags ...string) rotated {
	t.Helper()
	return parsed[rotated](t, append([]string{"keys", "rotate", id, "--database-url", url}, flags...)...)
}

// While a rotation's overlap lasts, a node accepts both keys; after it only the new one.
func TestARotatedKeyWorksUntilTheOverlapIsOver(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, _ := workspaceWithKey(t, url)
	n := startNode(t, url)
	create := func(t *testing.T) newKey {
		t.Helper()
		return parsed[newKey](t, "keys", "create", "--workspace", workspace, "--scopes", "items:read", "--rate", "9.5", "--burst", "77", "--database-url", url)
	}
	status := func(key string) int { return n.get(t, "/v1/items?limit=1", key).StatusCode }
	ends := func(t *testing.T, key string) {
		t.Helper()
		within(t, patience, "the old key ends", func() bool { return status(key) == http.StatusUnauthorized })
	}

	t.Run("both work meanwhile", func(t *testing.T) {
		old := create(t)
		if got := status(old.Key); got != http.StatusOK {
			t.Fatal(got)
		}
		next := rotate(t, url, old.ID)
		a := n.get(t, "/v1/items?limit=1", next.Key)
		if a.StatusCode != http.StatusOK || a.Header.Get("X-RateLimit-Limit") != "77" || status(old.Key) != http.StatusOK {
			t.Errorf("the new key: %s, %v; the old one: %d", a.Status, a.Header, status(old.Key))
		}
		if got := n.get(t, "/v1/contacts?limit=1", next.Key).StatusCode; got != http.StatusForbidden {
			t.Errorf("a scope that the old key had not: %d", got)
		}
		if ends, err := time.Parse(time.RFC3339, next.Replaces.ExpiresAt); err != nil || time.Until(ends) < 23*time.Hour || time.Until(ends) > 25*time.Hour || next.Replaces.ID != old.ID {
			t.Errorf("%+v", next.Replaces)
		}
	})
	t.Run("the overlap ends", func(t *testing.T) {
		old := create(t)
		status(old.Key) // from now on the node knows the key
		next := rotate(t, url, old.ID, "--overlap", "2s")
		ends(t, old.Key)
		if got := status(next.Key); got != http.StatusOK {
			t.Errorf("the new key: %d", got)
		}
	})
	t.Run("at once", func(t *testing.T) {
		old := create(t)
		status(old.Key)
		next := rotate(t, url, old.ID, "--overlap", "0s")
		ends(t, old.Key)
		again := rotate(t, url, next.ID, "--overlap", "1d") // the new one again
		if status(next.Key) != http.StatusOK || status(again.Key) != http.StatusOK {
			t.Error("a key does not work")
		}
		refused(t, exitFailed, "it is expired", "keys", "rotate", old.ID, "--database-url", url)
	})
}

// A script reads the new key from standard output.
func TestRotatePrintsTheKeyAlone(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, _ := workspaceWithKey(t, url)
	id := made(t, "keys", "create", "--workspace", workspace, "--database-url", url)
	p := start(t, "keys", "rotate", id, "--database-url", url)
	if <-p.ended; p.code != exitFine || len(p.out.String()) != 44 || !strings.HasPrefix(p.out.String(), "lk_") || !strings.Contains(p.err.String(), "replaces "+id+", which works until 2") {
		t.Errorf("exit %d: %q, %q", p.code, p.out.String(), p.err.String())
	}
}
