package admin

import (
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

// watching runs a watch of one dependency, whose check returns the error that failure holds.
func watching(t *testing.T, failure *atomic.Pointer[error]) *Watch {
	w := NewWatch(Dependency{Name: "Postgres", Runbook: "ListedgePostgresDown", Check: func(context.Context) error {
		if err := failure.Load(); err != nil {
			return *err
		}
		return nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

func TestWatch(t *testing.T) {
	refused := error(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})

	t.Run("nothing is known before the first check", func(t *testing.T) {
		if s := NewWatch(Dependency{Name: "Redis"}).States()[0]; s.Checked || s.Up || s.Name != "Redis" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("it is down since the first check that failed, for the reason of the last", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var failure atomic.Pointer[error]
			w := watching(t, &failure)
			boottimetest.Pass(watchInterval / 2)
			began := time.Now()
			if s := w.States()[0]; !s.Checked || !s.Up || !s.Since.Before(began) {
				t.Errorf("after the start: %+v", s)
			}
			failure.Store(&refused)
			boottimetest.Pass(watchInterval)
			if s := w.States()[0]; !s.Up {
				t.Errorf("down after one failure: %+v", s)
			}
			boottimetest.Pass(10 * watchInterval)
			s := w.States()[0]
			if s.Up || s.Why != "connection refused" || s.Error == "" || s.Since != began.Add(watchInterval/2) {
				t.Errorf("after 11 failures, the first at %s: %+v", began.Add(watchInterval/2), s)
			}
			failure.Store(nil)
			boottimetest.Pass(watchInterval)
			if again := w.States()[0]; !again.Up || again.Why != "" || !again.Since.After(s.Since) {
				t.Errorf("after it is back: %+v", again)
			}
		})
	})
	t.Run("one failure between two answers changes nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var failure atomic.Pointer[error]
			w := watching(t, &failure)
			boottimetest.Pass(watchInterval / 2)
			since := w.States()[0].Since
			for range 5 {
				failure.Store(&refused)
				boottimetest.Pass(watchInterval)
				failure.Store(nil)
				boottimetest.Pass(watchInterval)
			}
			if s := w.States()[0]; !s.Up || s.Since != since {
				t.Errorf("%+v, up since %s", s, since)
			}
		})
	})
	t.Run("one that hangs is down, and delays no other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			w := NewWatch(Dependency{Name: "a", Check: hangs}, Dependency{Name: "b", Check: func(context.Context) error { return nil }})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); w.Run(ctx) }()
			boottimetest.Pass(10 * time.Second)
			if s := w.States(); s[0].Up || s[0].Why != "no answer in time" || !s[1].Up {
				t.Errorf("%+v", s)
			}
			cancel()
			<-ended
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
