package admin_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "listedge/edge/admin"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/remedy"
)

func healthOf(checks ...Check) *Health {
	return NewHealth(slog.New(slog.DiscardHandler), func() string { return "followed" }, checks...)
}

// start runs a health until stop is called, or the test ends.
func start(t *testing.T, h *Health) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); h.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop
}

// watching runs the health of one dependency, whose check returns the error that failure holds.
func watching(t *testing.T, failure *atomic.Pointer[error]) *Health {
	w := healthOf(Check{Name: "Postgres", Light: true, Runbook: "ListedgePostgresDown", Run: func(context.Context) error {
		if err := failure.Load(); err != nil {
			return *err
		}
		return nil
	}})
	start(t, w)
	return w
}

// lines are what was logged, without times.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// take returns what was logged since the last call.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// logging is a health that logs into what it also returns.
func logging(checks ...Check) (*Health, *lines) {
	log := &lines{}
	return NewHealth(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})), func() string { return "followed" }, checks...), log
}

// How often checks run, until the node has started and later, and how long a start may take unreported.
const startInterval, checkInterval, reportAfter = 200 * time.Millisecond, time.Second, time.Second

func TestStatesOfChecks(t *testing.T) {
	refused := error(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})

	t.Run("nothing is known before the first check", func(t *testing.T) {
		if s := healthOf(Check{Name: "Redis", Run: func(context.Context) error { return nil }}).States()[0]; s.Checked || s.Up || s.Name != "Redis" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("it is down since the first check that failed, for the reason of the last", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var failure atomic.Pointer[error]
			w := watching(t, &failure)
			boottimetest.Pass(checkInterval / 2)
			began := time.Now()
			if s := w.States()[0]; !s.Checked || !s.Up || !s.Since.Before(began) {
				t.Errorf("after the start: %+v", s)
			}
			failure.Store(&refused)
			boottimetest.Pass(checkInterval)
			if s := w.States()[0]; !s.Up {
				t.Errorf("down after one failure: %+v", s)
			}
			boottimetest.Pass(10 * checkInterval)
			s := w.States()[0]
			if s.Up || s.Why != "dial: connect: connection refused" || s.Since != began.Add(checkInterval/2) {
				t.Errorf("after 11 failures, the first at %s: %+v", began.Add(checkInterval/2), s)
			}
			failure.Store(nil)
			boottimetest.Pass(checkInterval)
			if again := w.States()[0]; !again.Up || again.Why != "" || !again.Since.After(s.Since) {
				t.Errorf("after it is back: %+v", again)
			}
		})
	})
	t.Run("one failure between two answers changes nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var failure atomic.Pointer[error]
			w := watching(t, &failure)
			boottimetest.Pass(checkInterval / 2)
			since := w.States()[0].Since
			for range 5 {
				failure.Store(&refused)
				boottimetest.Pass(checkInterval)
				failure.Store(nil)
				boottimetest.Pass(checkInterval)
			}
			if s := w.States()[0]; !s.Up || s.Since != since {
				t.Errorf("%+v, up since %s", s, since)
			}
		})
	})
	t.Run("one that has passed is not run again for a while", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var runs atomic.Int32
			stop := start(t, healthOf(Check{Name: "a", Every: time.Hour, Run: func(context.Context) error {
				if runs.Add(1) < 3 {
					return refused
				}
				return nil
			}}))
			boottimetest.Pass(time.Minute)
			stop()
			if runs.Load() != 3 {
				t.Errorf("%d runs", runs.Load())
			}
		})
	})
	t.Run("one that hangs is down, and delays no other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			w := healthOf(Check{Name: "a", Runbook: "A", Run: hangs}, Check{Name: "b", Runbook: "B", Run: func(context.Context) error { return nil }})
			stop := start(t, w)
			boottimetest.Pass(10 * time.Second)
			if s := w.States(); s[0].Up || s[0].Why != "no answer in time" || !s[1].Up {
				t.Errorf("%+v", s)
			}
			stop()
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
		reports int  // that it fails and no longer does, and whether the node is ready
	}{
		{"a failure that is reported", Reported, true, 3},
		{"a failure of what a start needs", Starts, true, 3},
		{"a failure of what a node always needs", Always, false, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var now atomic.Pointer[error]
				now.Store(new(error))
				h, log := logging(Check{Name: "It", Effect: c.effect, Run: func(ctx context.Context) error {
					if *now.Load() == hangs {
						<-ctx.Done()
						return ctx.Err()
					}
					return *now.Load()
				}})
				expect := func(ready bool, it string) {
					t.Helper()
					if r := h.Readiness(); r.Ready != ready || h.Ready() != ready || len(r.Checks) != 1 || r.Checks["it"] != it {
						t.Errorf("%+v, want %v and %q", r, ready, it)
					}
				}
				expect(false, "not checked yet")
				stop := start(t, h)
				for _, step := range []struct {
					now   error
					ready bool
					it    string
				}{{nil, true, "ok"}, {wrong, c.ready, "wrong"}, {hangs, c.ready, "no answer in time"}, {nil, true, "ok"}} {
					now.Store(&step.now)
					boottimetest.Pass(3 * checkInterval)
					expect(step.ready, step.it)
				}
				h.Drain()
				expect(false, "ok")
				stop()
				if said := log.take(); strings.Count(said, "\n") != c.reports {
					t.Errorf("%d reports are wanted:\n%s", c.reports, said)
				}
			})
		})
	}
	t.Run("a start that takes long is reported once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var now atomic.Pointer[error]
			now.Store(&wrong)
			h, log := logging(Check{Name: "It", Effect: Starts, Run: func(context.Context) error { return *now.Load() }})
			stop := start(t, h)
			boottimetest.Pass(reportAfter / 2)
			if said := log.take(); said != "" {
				t.Errorf("it says at once: %s", said)
			}
			boottimetest.Pass(10 * reportAfter)
			now.Store(new(error))
			boottimetest.Pass(startInterval)
			stop()
			if said := strings.Split(log.take(), "\n"); len(said) != 5 || !strings.Contains(said[0], "error=wrong") ||
				!strings.Contains(said[1], `msg="not ready" failing=it`) || !strings.Contains(said[3], "msg=ready failing=none") {
				t.Errorf("%q", said)
			}
		})
	})
}

// "not ready" names a server that hangs: it is not logged before that is known.
func TestAStartThatHangsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, log := logging(Check{Name: "It", Effect: Starts, Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		ctx, cancel := context.WithTimeout(t.Context(), 20*reportAfter)
		defer cancel()
		h.Run(ctx)
		if said := log.take(); strings.Count(said, "\n") != 2 || !strings.Contains(said, `msg="not ready" failing=it`) {
			t.Error(said)
		}
	})
}

// What a start waits for may take longer than later: all of it is new.
func TestAStartOnABusyServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(4 * checkInterval):
				return nil
			}
		}
		h := healthOf(Check{Name: "It", Effect: Starts, Run: busy})
		stop := start(t, h)
		boottimetest.Pass(5 * checkInterval)
		if r := h.Readiness(); !r.Ready || r.Checks["it"] != "ok" {
			t.Errorf("%+v", r)
		}
		boottimetest.Pass(5 * checkInterval)
		if r := h.Readiness(); !r.Ready || r.Checks["it"] != "no answer in time" {
			t.Errorf("later: %+v", r)
		}
		stop()
	})
}

// A failure is logged once each way, also while the node starts, and not for one failed run.
func TestChecksAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started, it atomic.Pointer[error]
		starts, fails, fine := errors.New("starts"), errors.New("away"), error(nil)
		started.Store(&starts)
		it.Store(&fails)
		h, log := logging(Check{Name: "Start", Effect: Starts, Run: func(context.Context) error { return *started.Load() }, Broken: "no start"},
			Check{Name: "It", Run: func(context.Context) error { return *it.Load() }, Broken: "it is down", Runbook: "ItIsDown"})
		stop := start(t, h)
		boottimetest.Pass(startInterval / 2) // all that follows happens between two runs
		const noStart = `level=WARN msg="no start" error=starts remedy=""` + "\n"
		const down, up = `level=WARN msg="it is down" error=away remedy="see ItIsDown in the runbook"` + "\n", "level=INFO msg=\"no longer: it is down\"\n"
		for _, step := range []struct {
			name       string
			start, now *error
			checks     time.Duration
			log        string
		}{
			{"before the start", &starts, &fails, 10, noStart + down + "level=WARN msg=\"not ready\" failing=\"start, it\"\n"},
			{"started", &fine, &fails, 10, "level=INFO msg=\"no longer: no start\"\nlevel=INFO msg=ready failing=it\n"},
			{"up", &fine, &fine, 3, up},
			{"one failed run", &fine, &fails, 1, ""},
			{"after it", &fine, &fine, 3, ""},
			{"down again", &fine, &fails, 3, down},
		} {
			started.Store(step.start)
			it.Store(step.now)
			boottimetest.Pass(step.checks * checkInterval)
			if got := log.take(); got != step.log {
				t.Errorf("%s: %s, want %s", step.name, got, step.log)
			}
		}
		stop()
	})
}

// Advice is no failure: the check is up, its metric is 1, and the log has it once, with what to do. A failure after it is logged, too.
func TestAdvice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Pointer[error]
		now.Store(new(error))
		h, log := logging(Check{Name: "It", Effect: Always, Run: func(context.Context) error { return *now.Load() }, Broken: "it is not set"})
		stop := start(t, h)
		for _, step := range []struct {
			now   error
			ready bool
			it    string
			up    bool
			log   string
		}{
			{nil, true, "ok", true, "level=INFO msg=ready failing=none\n"},
			{Advise(remedy.Add(errors.New("it is slow"), "set it")), true, "ok: it is slow: set it", true,
				"level=WARN msg=\"it is not set\" advice=\"it is slow\" remedy=\"set it\"\n"},
			{errors.New("away"), false, "away", false, "level=WARN msg=\"it is not set\" error=away remedy=\"\"\nlevel=WARN msg=\"not ready\" failing=it\n"},
			{Advise(errors.New("it is slow")), true, "ok: it is slow", true,
				"level=WARN msg=\"it is not set\" advice=\"it is slow\" remedy=\"\"\nlevel=INFO msg=ready failing=none\n"},
			{Advise(nil), true, "ok", true, "level=INFO msg=\"no longer: it is not set\"\n"},
		} {
			now.Store(&step.now)
			boottimetest.Pass(3 * checkInterval)
			r, said := h.Readiness(), log.take()
			if r.Ready != step.ready || r.Checks["it"] != step.it || h.Metrics()["it"] != step.up || said != step.log {
				t.Errorf("%+v, %v, %s, want %+v", r, h.Metrics(), said, step)
			}
		}
		stop()
	})
}

// What another failure explains is said to follow from it.
func TestAFailureThatFollowsFromAnother(t *testing.T) {
	for _, c := range []struct {
		name    string
		server  error
		follows bool
	}{
		{"the server is up", nil, false}, {"the server is down", errors.New("away"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Examine([]Check{{Name: "Server", Run: func(context.Context) error { return c.server }},
				{Name: "use", After: []string{"Server"}, Run: func(context.Context) error { return errors.New("none") }}})
			if s[1].Why != "none" || s[0].Follows || s[1].Follows != c.follows {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A failure is not logged as one of its own before the check that may explain it has run again,
// however long that lets a server alone after a success.
func TestAFailureWaitsForItsExplanation(t *testing.T) {
	for _, every := range []time.Duration{0, 2 * time.Second, 5 * time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for after := checkInterval / 10; after < 7*checkInterval; after += checkInterval / 2 {
					var fails atomic.Bool
					check := func(context.Context) error {
						if fails.Load() {
							return errors.New("away")
						}
						return nil
					}
					h, log := logging(Check{Name: "Server", Every: every, Run: check, Broken: "it is down"},
						Check{Name: "use", After: []string{"Server"}, Run: check, Broken: "it is not used"})
					stop := start(t, h)
					boottimetest.Pass(after)
					fails.Store(true)
					boottimetest.Pass(every + 5*checkInterval)
					if said := log.take(); strings.Contains(said, "not used") || !strings.Contains(said, "it is down") {
						t.Errorf("down after %v: %s", after, said)
					}
					stop()
				}
			})
		})
	}
}
