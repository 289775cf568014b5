package usage_test

import (
	"testing"
	"testing/synctest"
	"time"

	"listedge/origin/usage"
)

func TestBusiestKeys(t *testing.T) {
	const interval = 5 * time.Second
	begin := func(t *testing.T) *usage.Recorder {
		r := start(newTable())
		t.Cleanup(func() { closed(t, r) })
		return r
	}
	answered := func(c *usage.Counter, status, times int) {
		for range times {
			c.Answered(status, 0)
		}
	}
	t.Run("those with most requests are found among many", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := begin(t)
			for n := range 2000 {
				counter := r.Counter(key(n%7, n))
				defer answered(counter, 200, 0) // it is in use
				answered(counter, 200, 1)
				switch n {
				case 500:
					answered(counter, 429, 99)
				case 1500:
					answered(counter, 200, 49)
				}
			}
			time.Sleep(interval + time.Millisecond)
			top := r.Busiest()
			if len(top) != 10 || top[0] != (usage.Use{Key: key(500%7, 500), Requests: 20, Refused: 19.8}) || top[1] != (usage.Use{Key: key(1500%7, 1500), Requests: 10}) || top[9].Requests != .2 {
				t.Errorf("%+v", top)
			}
		})
	})
	t.Run("the counters of a key are added up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := begin(t)
			one, other, another := r.Counter(key(1, 1)), r.Counter(key(1, 2)), r.Counter(key(1, 1))
			answered(one, 200, 10)
			answered(other, 200, 15)
			answered(another, 429, 10)
			time.Sleep(interval + time.Millisecond)
			if top := r.Busiest(); len(top) != 2 || top[0] != (usage.Use{Key: key(1, 1), Requests: 4, Refused: 2}) {
				t.Errorf("%+v", top)
			}
		})
	})
	t.Run("a key that stopped is forgotten after an interval", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := begin(t)
			c := r.Counter(key(1, 1))
			answered(c, 200, 10)
			time.Sleep(interval + time.Millisecond)
			if top := r.Busiest(); len(top) != 1 {
				t.Errorf("%+v", top)
			}
			time.Sleep(interval)
			if top := r.Busiest(); len(top) != 0 {
				t.Errorf("%+v", top)
			}
		})
	})
}
