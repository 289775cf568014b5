package edge

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/page"
	"listedge/metrics"
	"listedge/origin/postgres"
)

// The response says whether to try again: what an operator can mend without its doing is an
// outage, and a row that cannot be shown is not.
func TestProblemsOfAPage(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		search string
		want   *problem
	}{
		{"a slow database", page.ErrTimeout, "", originSlow},
		{"a slow search", page.ErrTimeout, "a", searchSlow},
		{"a server that is away", page.ErrUnavailable, "", originDown},
		{"a missing right", page.ErrNotAllowed, "", originClosed},
		{"a missing table", page.ErrSchema, "", originClosed},
		{"a row that cannot be shown", postgres.ErrRow, "", internalError},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := lookUpFailed(&page.Query{Search: c.search}, fmt.Errorf("look up: %w", c.err)).problem; got != c.want {
				t.Errorf("%d: %s", got.status, got.message)
			}
		})
	}
}

// In an outage every request fails, and one failure a second is logged. A defect is logged each
// time.
func TestOutagesDoNotFillTheLog(t *testing.T) {
	for name, c := range map[string]struct {
		problem *problem
		lines   int
	}{"an outage": {&problem{status: 503, log: onceASecond()}, 2}, "a defect": {internalError, 4}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				x := &exchange{server: &Server{Options: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}}, conn: &conn{}, route: (&metrics.Edge{}).Route("none")}
				for i := range 4 {
					if i == 3 {
						boottimetest.Pass(time.Second)
					}
					x.fail(&failure{problem: c.problem})
				}
				if n := strings.Count(log.String(), "request failed"); n != c.lines {
					t.Errorf("%d lines, want %d", n, c.lines)
				}
			})
		})
	}
}
