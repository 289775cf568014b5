package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
)

func healthOf(checks ...Check) *Health {
	return NewHealth(func() string { return "followed" }, nil, checks...)
}

// watching runs the health of one dependency, whose check returns the error that failure holds.
func watching(t *testing.T, failure *atomic.Pointer[error]) *Health {
	w := healthOf(Check{Name: "Postgres", Runbook: "ListedgePostgresDown", Run: func(context.Context) error {
		if err := failure.Load(); err != nil {
			return *err
		}
		return nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx, func(Readiness) {}) }()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

func TestDependencies(t *testing.T) {
	refused := error(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})

	t.Run("nothing is known before the first check", func(t *testing.T) {
		if s := healthOf(Check{Name: "Redis", Runbook: "ListedgeRedisDown"}).Dependencies()[0]; s.Checked || s.Up || s.Name != "Redis" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("it is down since the first check that failed, for the reason of the last", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var failure atomic.Pointer[error]
			w := watching(t, &failure)
			boottimetest.Pass(checkInterval / 2)
			began := time.Now()
			if s := w.Dependencies()[0]; !s.Checked || !s.Up || !s.Since.Before(began) {
				t.Errorf("after the start: %+v", s)
			}
			failure.Store(&refused)
			boottimetest.Pass(checkInterval)
			if s := w.Dependencies()[0]; !s.Up {
				t.Errorf("down after one failure: %+v", s)
			}
			boottimetest.Pass(10 * checkInterval)
			s := w.Dependencies()[0]
			if s.Up || s.Why != "connection refused" || s.Error == "" || s.Since != began.Add(checkInterval/2) {
				t.Errorf("after 11 failures, the first at %s: %+v", began.Add(checkInterval/2), s)
			}
			failure.Store(nil)
			boottimetest.Pass(checkInterval)
			if again := w.Dependencies()[0]; !again.Up || again.Why != "" || !again.Since.After(s.Since) {
				t.Errorf("after it is back: %+v", again)
			}
		})
	})
	t.Run("one failure between two answers changes nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var failure atomic.Pointer[error]
			w := watching(t, &failure)
			boottimetest.Pass(checkInterval / 2)
			since := w.Dependencies()[0].Since
			for range 5 {
				failure.Store(&refused)
				boottimetest.Pass(checkInterval)
				failure.Store(nil)
				boottimetest.Pass(checkInterval)
			}
			if s := w.Dependencies()[0]; !s.Up || s.Since != since {
				t.Errorf("%+v, up since %s", s, since)
			}
		})
	})
	t.Run("one that hangs is down, and delays no other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			w := healthOf(Check{Name: "a", Runbook: "A", Run: hangs}, Check{Name: "b", Runbook: "B", Run: func(context.Context) error { return nil }})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); w.Run(ctx, func(Readiness) {}) }()
			boottimetest.Pass(10 * time.Second)
			if s := w.Dependencies(); s[0].Up || s[0].Why != "no answer in time" || !s[1].Up {
				t.Errorf("%+v", s)
			}
			cancel()
			<-ended
		})
	})
}

// Each check passes, then fails, then hangs, then passes again.
func TestReadiness(t *testing.T) {
	wrong, hangs := errors.New("wrong"), errors.New("hangs")
	for _, c := range []struct {
		name    string
		effect  Effect
		ready   bool // while it fails
		reports int  // as the node becomes ready, not ready for two reasons, and ready again
	}{
		{"a failure that is reported", Reported, true, 1},
		{"a failure of what a start needs", Starts, true, 1},
		{"a failure of what a node always needs", Always, false, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var now atomic.Pointer[error]
				now.Store(new(error))
				var reports []Readiness
				h := healthOf(Check{Name: "It", Effect: c.effect, Run: func(ctx context.Context) error {
					if *now.Load() == hangs {
						<-ctx.Done()
						return ctx.Err()
					}
					return *now.Load()
				}}, Check{Name: "Hidden", Run: func(context.Context) error { return wrong }})
				expect := func(ready bool, it string) {
					t.Helper()
					if r := h.Readiness(); r.Ready != ready || h.Ready() != ready || len(r.Checks) != 1 || r.Checks["it"] != it {
						t.Errorf("%+v, want %v and %q", r, ready, it)
					}
				}
				expect(false, "not checked yet")
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); h.Run(ctx, func(r Readiness) { reports = append(reports, r) }) }()
				for _, step := range []struct {
					now   error
					ready bool
					it    string
				}{{nil, true, "ok"}, {wrong, c.ready, "wrong"}, {hangs, c.ready, "context deadline exceeded"}, {nil, true, "ok"}} {
					now.Store(&step.now)
					boottimetest.Pass(3 * checkInterval)
					expect(step.ready, step.it)
				}
				h.Drain()
				expect(false, "ok")
				cancel()
				<-ended
				if len(reports) != c.reports {
					t.Errorf("%d reports: %+v", len(reports), reports)
				}
			})
		})
	}
	t.Run("a start that takes long is reported, once for each reason", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var now atomic.Pointer[error]
			now.Store(&wrong)
			var reports []Readiness
			h := healthOf(Check{Name: "It", Effect: Starts, Run: func(context.Context) error { return *now.Load() }})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			began, first := time.Now(), time.Duration(0)
			go func() {
				defer close(ended)
				h.Run(ctx, func(r Readiness) { reports, first = append(reports, r), cmp.Or(first, time.Since(began)) })
			}()
			boottimetest.Pass(10 * reportAfter)
			now.Store(new(error))
			boottimetest.Pass(startInterval)
			cancel()
			<-ended
			if first < reportAfter || len(reports) != 2 || reports[0].Ready || reports[0].Checks["it"] != "wrong" || !reports[1].Ready {
				t.Errorf("from %s on: %+v", first, reports)
			}
		})
	})
}

func TestReasonsInFewWords(t *testing.T) {
	for want, err := range map[string]error{
		"connection refused":              fmt.Errorf("database unavailable: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}),
		"no answer in time":               fmt.Errorf("ping: %w", context.DeadlineExceeded),
		"the name redis does not resolve": &net.OpError{Op: "dial", Err: &net.DNSError{Name: "redis", Err: "no such host"}},
		"it is a standby of the primary":  errors.New("it is\n  a standby of the primary"),
		"NOAUTH Authentication required.": errors.New("NOAUTH Authentication required."),
	} {
		if got := inFewWords(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
