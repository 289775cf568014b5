//go:build !race

package world_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/page"
	"listedge/internal/world"
)

// What pages cost fleets that no machine here could run, by counting: real caches and readers of the log. Each node is asked for every page, so
// whatever grows with nodes × pages is seen.

// cost is what all nodes have asked for, and what their clients got.
type cost struct {
	commands, bytes, statements, asked, stale, refused float64
}

func (c cost) minus(o cost) cost {
	return cost{c.commands - o.commands, c.bytes - o.bytes, c.statements - o.statements, c.asked - o.asked, c.stale - o.stale, c.refused - o.refused}
}

func (w *run) cost() cost {
	c := cost{statements: float64(w.counts["statements"]), asked: float64(w.counts["requests"]), stale: float64(w.counts["stale"]),
		refused: float64(w.counts["refused"])}
	for _, s := range w.Servers() {
		c.commands += float64(s.Traffic.Commands)
		c.bytes += float64(s.Traffic.Sent + s.Traffic.Received)
	}
	return c
}

// inPagesFleet has f play with so many nodes that have proven what they have.
func inPagesFleet(t *testing.T, size int, f func(w *run)) {
	synctest.Test(t, func(*testing.T) {
		w := &run{World: world.New(&world.Play{Seed: 4}), counts: map[string]int{}, nodes: make([]*node, size), pace: 1, ample: true}
		w.Near = 200 * time.Microsecond
		w.newVisitors()
		for i := range w.nodes {
			w.start(i)
		}
		w.Calm()
		w.until(w.isWhole)
		f(w)
		w.end()
		if w.broken != "" {
			t.Error(w.broken)
		}
	})
}

// pageGap is how often a node is asked for a page; it takes turns.
const pageGap = 50 * time.Millisecond

// during returns what is asked for meanwhile, with so many commits a second.
func (w *run) during(d time.Duration, commits int, asked bool, each func()) cost {
	before, began := w.cost(), w.Now()
	done, turns := 0, 0
	for w.Now().Sub(began) < d {
		gone := w.Now().Sub(began)
		for ; done < int(gone.Seconds()*float64(commits)); done++ {
			w.Change(w.Tenants[0])
		}
		for ; asked && turns < int(gone/pageGap); turns++ {
			for _, n := range w.nodes {
				w.askFor(n, w.Queries[turns%len(w.Queries)])
			}
		}
		each()
		w.step()
	}
	return w.cost().minus(before)
}

// askFor asks a node for a page.
func (w *run) askFor(n *node, q page.Query) {
	q.Limit = world.Rows
	a := &ask{number: w.counts["requests"], node: n, arrived: w.Now(), stepped: n.stepped, q: q}
	w.request(func() {
		a.err = a.send()
		a.ended = w.Now()
	}, func() {
		switch {
		case a.err != nil:
			w.counts["refused"]++
		case a.result.stale:
			w.counts["stale"]++
		}
		w.judge(a)
	})
}

// visible returns how long after a commit was visible half of the nodes show it, and all.
func (w *run) visible() (half, all time.Duration) {
	q, before := w.Queries[0], w.Moments[len(w.Moments)-1].LSN
	q.Limit = world.Rows
	w.Change(w.Tenants[0])
	for w.Moments[len(w.Moments)-1].LSN == before {
		w.step()
	}
	var texts []string
	for _, v := range w.Present(&q) {
		texts = append(texts, v.Text())
	}
	var took []time.Duration
	waits := slices.Clone(w.nodes)
	for began := w.Now(); len(waits) > 0 && w.Now().Sub(began) < time.Second; w.step() {
		waits = slices.DeleteFunc(waits, func(n *node) bool {
			a := &ask{node: n, q: q}
			shows := a.send() == nil && slices.Equal(a.result.rows, texts)
			if shows {
				took = append(took, w.Now().Sub(began))
			}
			return shows
		})
	}
	if len(waits) > 0 {
		w.breaks(onlyProven, "%d nodes do not show a commit of a second ago", len(waits))
		return 0, 0
	}
	return took[len(took)/2], took[len(took)-1]
}

// A page that nobody has is one statement, in a small fleet and in a large one; a commit is none. What a node costs Redis does not depend on the others.
func TestWhatPagesCostAFleet(t *testing.T) {
	var first [3]cost
	for i, size := range fleets() {
		inPagesFleet(t, size, func(w *run) {
			cold := w.during(time.Second, 0, true, func() {})
			t.Logf("%4d nodes are asked for %d pages that none has: %.0f statements", size, len(w.Queries), cold.statements)
			if cold.statements > float64(len(w.Queries)) {
				t.Errorf("%d nodes: %.0f statements for %d pages", size, cold.statements, len(w.Queries))
			}
			for j, commits := range []int{0, 10, 100} {
				began := time.Now()
				c := w.during(2*time.Second, commits, true, func() {})
				per := time.Since(began).Seconds() * float64(size)
				c.commands, c.bytes = c.commands/per, c.bytes/per
				t.Logf("%4d nodes, %3d commits a second: %.0f commands, %.1f kB a node and second, %.0f statements", size, commits, c.commands, c.bytes/1e3, c.statements)
				if i == 0 {
					first[j] = c
				}
				if c.statements > 0 || c.commands > 1.2*first[j].commands || c.bytes > 1.2*first[j].bytes {
					t.Errorf("%d nodes, %d commits a second: a node costs %+v, and of a small fleet %+v", size, commits, c, first[j])
				}
			}
			w.until(w.isWhole)
			half, all := w.visible()
			t.Logf("%4d nodes: half of them show a commit after %s, all after %s", size, half, all)
		})
	}
}

// What is lost with Redis, with the follower, or with a third of the nodes: statements, and no page.
func TestWhatALossCostsPages(t *testing.T) {
	once := func(k world.Kind) func(w *run, step int) {
		return func(w *run, step int) {
			if step == 0 {
				w.Force(k)
			}
		}
	}
	for _, size := range fleets() {
		for _, loss := range []struct {
			what string
			each func(w *run, step int)
		}{
			{"Redis does not answer", func(w *run, _ int) { w.Force(world.Hangs) }},
			{"Redis loses all", once(world.RedisLosesAll)},
			{"the follower dies", once(world.FollowerDies)},
			{"the slot is lost", once(world.SlotIsLost)},
			{"a third of the nodes starts anew", func(w *run, step int) {
				if step < len(w.nodes)/3 {
					w.start(step)
				}
			}},
		} {
			inPagesFleet(t, size, func(w *run) {
				w.during(time.Second, 10, true, func() {})
				step := 0
				c := w.during(3*time.Second, 10, true, func() {
					loss.each(w, step)
					step++
				})
				t.Logf("%4d nodes, %s: %.1f statements a node in 3 s, of %.0f requests", size, loss.what, c.statements/float64(size), c.asked/float64(size))
				if c.refused+c.stale > 0 {
					t.Errorf("%d nodes, %s: of %.0f requests %.0f got a stale page, and %.0f none", size, loss.what, c.asked, c.stale, c.refused)
				}
			})
		}
	}
}
