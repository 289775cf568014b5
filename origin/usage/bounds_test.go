//go:build !race

package usage_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	"listedge/origin/usage"
)

// The race detector makes so many keys take minutes.

// The database gets at most four batches in 5 s, however many keys are in use. Every key is
// written in turn, also keys for which there was no room at first.
func TestTheLoadOfTheDatabaseIsBounded(t *testing.T) {
	const keys, intervals = 1<<17 + 10_000, 10
	synctest.Test(t, func(t *testing.T) {
		w := newTable()
		r := usage.Start(w.write)
		counters := make([]*usage.Counter, keys)
		for i := range counters {
			counters[i] = r.Counter(key(1, i))
		}
		for range intervals {
			for _, c := range counters {
				c.Answered(200, 1)
			}
			before, _ := w.written()
			boottimetest.Pass(5 * time.Second)
			synctest.Wait()
			if after, _ := w.written(); after-before > 4 {
				t.Fatalf("%d batches in 5 s", after-before)
			}
		}
		if _, rows := w.written(); rows != keys {
			t.Errorf("after %d intervals %d of %d keys have been written", intervals, rows, keys)
		}
		// By then a row waits for its nine turns at most.
		if age := time.Since(r.Stats().Since); age < 30*time.Second || age > 45*time.Second {
			t.Errorf("the oldest count is %v old", age)
		}
		closed(t, r)
		if got := w.total(); got != keys*intervals {
			t.Errorf("%d requests are counted, want %d", got, keys*intervals)
		}
	})
}

// While nothing can be written, memory is bounded. Beyond the bound, keys with a row that waits are
// counted in its hour, and it is said how many requests of others are lost.
func TestMemoryIsBounded(t *testing.T) {
	const bound, more = 1 << 18, 5000
	synctest.Test(t, func(t *testing.T) {
		w := newTable()
		w.failing(func(context.Context) (error, error) { return errors.New("permission denied"), nil })
		r, hour := usage.Start(w.write), time.Now().Truncate(time.Hour)
		counters := make([]*usage.Counter, bound+more)
		for i := range counters {
			counters[i] = r.Counter(key(1, i))
			counters[i].Answered(200, 1)
		}
		boottimetest.Pass(6 * time.Second)
		if s := r.Stats(); s.Lost != more {
			t.Errorf("%d lost, want %d", s.Lost, more)
		}
		boottimetest.Pass(time.Until(hour.Add(time.Hour + time.Second)))
		last, other := counters[bound-1], counters[bound] // the first are in a batch that is sent again
		last.Answered(200, 1)
		other.Answered(200, 1)
		boottimetest.Pass(6 * time.Second)
		if s := r.Stats(); s.Lost != more+1 {
			t.Errorf("%d lost, want %d", s.Lost, more+1)
		}
		w.failing(nil)
		closed(t, r)
		if got := w.rows[row{key(1, bound-1), hour}].Requests; got != 2 || w.total() != bound+1 {
			t.Errorf("%d requests in the hour, %d in all", got, w.total())
		}
		if most := slices.Max(w.writes); most > 4096 {
			t.Errorf("a batch of %d rows", most)
		}
	})
}
