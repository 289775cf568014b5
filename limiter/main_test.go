package limiter

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	redistest.Silence()
	goleak.VerifyTestMain(m)
}

// patient is a budget for tests that are not about the budget: for hangs, on
// however slow a machine.
const patient = time.Minute

func splitAddr(t testing.TB, address string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

var startRedis = redistest.Start

// open makes a limiter that is closed before the test's other clean-ups.
func open(t testing.TB, o Options) *Limiter {
	t.Helper()
	l := New(o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// Take is TakeAt by the limiter's own clock.
func (l *Limiter) Take(key, workspace *Bucket) Decision { return l.take(l.now(), key, workspace) }

// Level is how the bucket stands now.
func (b *Bucket) Level() Level {
	if b == nil || b.owner.clock == nil {
		return b.LevelAt(time.Now())
	}
	return b.LevelAt(b.owner.clock())
}

// counted waits until the node has found so many for a while: one that has not
// takes a smaller part while Redis is away.
func counted(t testing.TB, l *Limiter, nodes int64) {
	t.Helper()
	within(t, 2*patient, "the nodes are counted", func() bool { return l.fleet.known.Load() && l.fleet.size.Load() == nodes })
}

func policy(t testing.TB, rate float64, burst int64) Policy {
	t.Helper()
	p, err := NewPolicy(rate, burst)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// eventually waits for what another goroutine is about to bring.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	sandboxtest.Within(t, patient, what, ok)
}

var within = sandboxtest.Within
