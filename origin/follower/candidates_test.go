package follower

import (
	"testing"
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
