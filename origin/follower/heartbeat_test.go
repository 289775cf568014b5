package follower

import (
	"testing"
	"time"
)

func TestHeartbeatsComeRightAfterProbes(t *testing.T) {
	t.Parallel()
	start := time.Now()
	ms := func(n float64) time.Time { return start.Add(time.Duration(n * float64(time.Millisecond))) }
	for _, c := range []struct{ now, probed, want float64 }{
		{100, 99, 150},     // right behind it: the next one is sent at 149
		{101.5, 99, 150},   // a little late
		{110, 99, 150},     // at the beginning, out of step: sooner,
		{140, 99, 200},     // or later
		{124.9, 99, 150},   //
		{125, 99, 200},     //
		{190, 99, 250},     // one was late
		{99.5, 99, 149.5},  // a probe that has just been sent
		{1000, 99, 1050},   // nobody probes any more
		{1000, -9e9, 1050}, // or ever did
	} {
		if got := nextBeat(ms(c.now), ms(c.probed)); got != ms(c.want) {
			t.Errorf("at %v, probed at %v: %v", c.now, c.probed, float64(got.Sub(start))/1e6)
		}
	}
	// Whatever the step, the next is never much farther away, and in step it stays there.
	for now, probed := start.Add(37*time.Millisecond), start; now.Before(start.Add(time.Minute)); {
		next := nextBeat(now, probed)
		if wait := next.Sub(now); wait < heartbeatEvery/2 || wait > heartbeatEvery*3/2 {
			t.Fatalf("%v to wait at %v", wait, now.Sub(start))
		}
		if now.Sub(start) > time.Second && next.Sub(start)%heartbeatEvery != afterProbe {
			t.Fatalf("out of step: %v", next.Sub(start))
		}
		now = next.Add(time.Duration(now.UnixNano() % int64(3*time.Millisecond)))
		probed = start.Add(now.Sub(start).Truncate(heartbeatEvery))
	}
}

// unprobed is of a node that does not read the log.
func unprobed() time.Time { return time.Time{} }
