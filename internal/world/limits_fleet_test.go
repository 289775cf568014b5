//go:build !race

package world_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/world"
	"listedge/limiter"
)

// What limits cost fleets that no machine here could run, by counting: real limiters in virtual time, on a Redis that counts commands and
// bytes. A tenth of the keys and requests is simulated: what a request costs depends on the nodes and on its own key, and the calls of keys are
// added. Heartbeats are all simulated.

const simulatedPart = 10

// mix is a load: 100,000 requests a second over all keys.
type mix struct {
	keys      int
	perSecond float64 // of a key
	limit     limiter.Policy
}

var mixes = []mix{{100, 1000, rated(1250, 2500)}, {10_000, 10, rated(50, 100)}, {100_000, 1, rated(50, 100)}}

// inFleet has f play with so many nodes that have counted one another.
func inFleet(t *testing.T, nodes int, f func(w *limits)) {
	synctest.Test(t, func(*testing.T) {
		w := newLimits(&world.Play{Seed: 1}, limiter.FailLocal)
		w.far(400 * time.Microsecond).join(nodes)
		w.run(3 * time.Second)
		f(w)
		w.close()
	})
}

// ofMix makes clients, which are judged if there are few.
func (w *limits) ofMix(m mix, judged int) {
	for i := range m.keys / simulatedPart {
		c := &client{name: fmt.Sprint("k", i), policy: m.limit, exact: exactly(m.limit, w.now())}
		if i < judged {
			w.watch(limiter.KeyBucket("w", c.name), m.limit)
		}
		w.clients = append(w.clients, c)
	}
}

// send has the requests of a mix come for a while, each to any node.
func (w *limits) send(m mix, d time.Duration) {
	gap := time.Duration(float64(time.Second) / (m.perSecond * float64(len(w.clients))))
	for end := time.Now().Add(d); time.Now().Before(end); w.run(time.Duration(w.Rand().ExpFloat64() * float64(gap))) {
		w.request(w.anyNode(), w.clients[w.Rand().IntN(len(w.clients))])
	}
}

// traffic is what was sent to Redis and back, a node and second.
func (w *limits) traffic(during func()) (commands, bytes float64) {
	before, began := w.redis.Traffic, time.Now()
	during()
	per := time.Since(began).Seconds() * float64(len(w.nodes))
	is := w.redis.Traffic
	return float64(is.Commands-before.Commands) / per, float64(is.Sent+is.Received-before.Sent-before.Received) / per
}

// fleets are the sizes that are played: with -v large ones, too.
func fleets() []int {
	if testing.Verbose() {
		return []int{10, 100, 1000}
	}
	return []int{3, 30}
}

// A node at rest costs Redis the same in a small fleet and in a large one, and a request at most one call in any.
func TestWhatAFleetCosts(t *testing.T) {
	var idle [][2]float64
	for _, nodes := range fleets() {
		var commands, bytes float64
		inFleet(t, nodes, func(w *limits) {
			commands, bytes = w.traffic(func() { w.run(10 * time.Second) })
		})
		idle = append(idle, [2]float64{commands, bytes})
		t.Logf("%4d nodes, idle: %.2f commands, %.0f bytes a node and second", nodes, commands, bytes)
	}
	if first, last := idle[0], idle[len(idle)-1]; last[0] > 2.1 || last[1] > 1.05*first[1]+20 {
		t.Errorf("a node of a large fleet costs %v, and of a small one %v", last, first)
	}
	played, warm, span := mixes, 12*time.Second, 8*time.Second
	if !testing.Verbose() {
		played, warm, span = []mix{{200, 10, rated(50, 100)}}, 2*time.Second, 2*time.Second
	}
	for _, m := range played {
		for _, nodes := range fleets() {
			inFleet(t, nodes, func(w *limits) {
				w.ofMix(m, 0)
				w.send(m, warm)
				calls, asked, heartbeats, refused := w.counts["calls"], w.counts["requests"], idle[slices.Index(fleets(), nodes)], int64(0)
				commands, bytes := w.traffic(func() { w.send(m, span) })
				for _, c := range w.clients {
					refused += c.ideal - c.admitted
				}
				each := float64(w.counts["calls"]-calls) / float64(w.counts["requests"]-asked)
				t.Logf("%4d nodes, %6d keys of %4g/s: %.3f calls a request, %.1f commands, %.0f bytes a node and second; %.3f %% refused that an exact bucket admits",
					nodes, m.keys, m.perSecond, each, heartbeats[0]+simulatedPart*(commands-heartbeats[0]), heartbeats[1]+simulatedPart*(bytes-heartbeats[1]),
					100*float64(refused)/float64(w.counts["requests"]))
				if each > 1.02 {
					t.Errorf("%d nodes: %.2f calls a request", nodes, each)
				}
			})
		}
	}
}

// What is lost with a part of a fleet: requests, and tokens above the promise.
func TestWhatALossCosts(t *testing.T) {
	m := mix{10 * simulatedPart, 40, rated(50, 100)}
	for _, nodes := range fleets() {
		for _, loss := range []struct {
			what string
			of   func(w *limits)
			most float64 // bursts above the promise
		}{
			{"Redis does not answer for 30 s", func(w *limits) { w.hang(30 * time.Second) }, .2},
			{"Redis loses all", func(w *limits) { w.redis.Lose(nil) }, 1.1},
			{"a third of the nodes crashes", func(w *limits) {
				for _, n := range w.nodes[:nodes/3] {
					n.idle = true
					n.kill()
				}
			}, .1},
			{"a third of the nodes is cut off for 30 s", func(w *limits) {
				for _, n := range w.nodes[:nodes/3] {
					n.cut = true
					w.After(30*time.Second, func() { n.cut = false })
				}
			}, 1},
		} {
			inFleet(t, nodes, func(w *limits) {
				w.ofMix(m, m.keys)
				w.fail(100, time.Hour) // what they admit is compared here
				w.send(m, 10*time.Second)
				asked, refused := w.counts["requests"], w.sum(func(c *client) int64 { return c.refused })
				loss.of(w)
				w.send(m, 30*time.Second)
				over := 0.0
				for _, j := range w.buckets {
					over = max(over, j.worst/float64(j.burst))
				}
				share := 100 * float64(w.sum(func(c *client) int64 { return c.refused })-refused) / float64(w.counts["requests"]-asked)
				t.Logf("%4d nodes, %s: %.1f %% refused of 80 %% of the rate in 30 s, %.2f bursts above the promise", nodes, loss.what, share, over)
				if over > loss.most {
					t.Errorf("%d nodes, %s: %.2f bursts above the promise, of %.1f", nodes, loss.what, over, loss.most)
				}
			})
		}
	}
}

func (w *limits) sum(of func(c *client) int64) (all int64) {
	for _, c := range w.clients {
		all += of(c)
	}
	return all
}
