package cache_test

import (
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
)

// While a machine sleeps, its nodes do not run and its monotonic clock stops. No entry may
// count as younger because of that.
func TestAfterASleep(t *testing.T) {
	// The time awake is much less than the bound, and than the time in which requests share an answer.
	const asleep, awake = time.Hour, 10 * time.Millisecond
	on := func(t *testing.T, test func(m *boottimetest.Machine, n *node)) {
		synctest.Test(t, func(t *testing.T) {
			m := boottimetest.NewMachine()
			c := open(t, cache.Options{TTL: time.Minute, MaxStale: 10 * time.Hour, Bound: bound, Clock: m.Clock})
			n := &node{T: t, opened: c, feed: follow(c), clock: m.Clock, q: queryOf("q")}
			n.asked(n.reads(shows("body")), "body", cache.Origin)
			n.isHit("body")
			test(m, n)
		})
	}
	t.Run("nothing is proven until it is proven again", func(t *testing.T) {
		on(t, func(m *boottimetest.Machine, n *node) {
			m.Sleep(asleep)
			boottimetest.Pass(awake)
			n.isHit("")
			n.beat()
			n.isHit("body")
		})
	})
	t.Run("a read of the log that began before proves nothing", func(t *testing.T) {
		on(t, func(m *boottimetest.Machine, n *node) {
			began := time.Now()
			m.Sleep(asleep)
			boottimetest.Pass(awake)
			n.isHit("") // the clocks are compared
			n.Beat(changefeed.Beat{Proof: n.proof(began), Snapshot: n.snapshot()})
			n.isHit("")
		})
	})
	t.Run("an answer from a moment before is not shared", func(t *testing.T) {
		on(t, func(m *boottimetest.Machine, n *node) {
			n.change(n.q)
			n.q = queryOf("ahead")
			n.asked(n.reads(shows("body")), "body", cache.Origin)
			m.Sleep(asleep)
			boottimetest.Pass(awake)
			n.isHit("")
		})
	})
	t.Run("a wall clock that is set forward is a sleep, until the next proof", func(t *testing.T) {
		on(t, func(m *boottimetest.Machine, n *node) {
			m.Set(time.Hour)
			n.isHit("")
			n.beat()
			n.isHit("body")
		})
	})
	t.Run("one that is set back is none", func(t *testing.T) {
		on(t, func(m *boottimetest.Machine, n *node) {
			m.Set(-2 * time.Hour)
			boottimetest.Pass(awake)
			n.isHit("body")
		})
	})
	t.Run("age counts it where changes are not followed", func(t *testing.T) {
		m := boottimetest.NewMachine()
		c := open(t, cache.Options{TTL: time.Minute, MaxStale: 10 * time.Hour, Clock: m.Clock})
		r, err := ask(c, queryOf("q"), brings("body"))
		want{body: "body", source: cache.Origin}.check(t, r, err)
		m.Sleep(asleep)
		if r, hit := c.Hit(queryOf("q"), time.Now()); hit {
			t.Errorf("a hit %s later, with a TTL of a minute", r.Age)
		}
	})
}
