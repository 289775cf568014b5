package follower

import (
	"testing"
	"testing/synctest"
	"time"
)

// A fleet's candidates leave the primary in peace while heartbeats arrive: what
// a hundred nodes ask must not grow into a load. Once none arrives they look.
func TestCandidatesAreContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.awaitFollowing(w.follow())
	const candidates = 10
	var all []running
	for range candidates {
		all = append(all, w.followWith(w.url, w.log, func() time.Duration { return 0 }))
	}
	looks := func() (sum uint64) {
		for _, f := range all {
			sum += f.looks.Load()
		}
		return sum
	}
	w.eventually("all have looked", func() bool { return looks() >= candidates })
	before, began := looks(), time.Now()
	time.Sleep(2 * contentFor)
	most := float64(candidates) * (1 + time.Since(began).Seconds()/contentFor.Seconds())
	if n := looks() - before; float64(n) > most {
		t.Errorf("%d looks at the slot by %d candidates in %s", n, candidates, time.Since(began))
	}
	uneasy := w.followWith(w.url, w.log, func() time.Duration { return time.Minute })
	w.eventually("an uneasy one looks often", func() bool { return uneasy.looks.Load() > 20 })
}

// A candidate looks as soon as it has grown uneasy, and does not wake up much
// before.
func TestACandidateWakesWhenItMayHaveGrownUneasy(t *testing.T) {
	for stopsAfter := time.Duration(0); stopsAfter < contentFor-4*candidacy; stopsAfter += 7 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			began, wakes := time.Now(), 0
			f := New(Options{Silence: func() time.Duration {
				wakes++
				passed := time.Since(began)
				return passed - min(passed, stopsAfter).Truncate(heartbeatEvery)
			}})
			if err := f.bide(t.Context()); err != nil {
				t.Fatal(err)
			}
			grown := stopsAfter.Truncate(heartbeatEvery) + uneasyAfter
			if late := time.Since(began) - grown; late <= 0 && time.Since(began) <= contentFor || late > 2*candidacy {
				t.Errorf("heartbeats until %v: looks %v after it has grown uneasy", stopsAfter, late)
			}
			if most := 4 + 2*int(time.Since(began)/(uneasyAfter-heartbeatEvery)); wakes > most {
				t.Errorf("heartbeats until %v: looks at the clock %d times in %v", stopsAfter, wakes, time.Since(began))
			}
		})
	}
}
