package edge

import (
	"fmt"
	"testing"

	"listedge/origin"
	"listedge/origin/postgres"
)

// The response says whether to try again: what an operator can mend without its doing is an
// outage, and a row that cannot be shown is not.
func TestProblemsOfAPage(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want *problem
	}{
		{"a slow database", origin.ErrTimeout, originSlow},
		{"a server that is away", origin.ErrUnavailable, originDown},
		{"a missing right", origin.ErrNotAllowed, originClosed},
		{"a missing table", origin.ErrSchema, originClosed},
		{"a row that cannot be shown", postgres.ErrRow, internalError},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := lookUpProblem(fmt.Errorf("look up: %w", c.err), ""); got != c.want {
				t.Errorf("%d: %s", got.status, got.message)
			}
		})
	}
	t.Run("a slow search", func(t *testing.T) {
		if got := lookUpProblem(origin.ErrTimeout, "a"); got != searchSlow {
			t.Errorf("%d: %s", got.status, got.message)
		}
	})
}
