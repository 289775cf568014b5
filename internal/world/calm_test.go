package world_test

import (
	"slices"

	"listedge/cache"
	"listedge/internal/world"
)

// calmSteps is how many steps all that was broken is whole again after.
const calmSteps = 800

// calmDown judges what holds once nothing happens any more: all nodes prove what they have, each copy becomes its list, and the
// restart of all nodes costs a client nothing.
func (w *run) calmDown() {
	if w.broken != "" {
		return
	}
	w.Calm()
	for i, n := range w.nodes {
		if n.door.isLeaving() {
			w.start(i)
		}
	}
	w.until(w.isWhole)
	for _, t := range w.trackers {
		w.round(t, w.nodes[0], cache.Directives{}) // it may have begun long ago
		for _, n := range w.nodes {
			w.round(t, n, cache.Directives{NoCache: true})
			w.compare(t)
		}
	}
	w.deploy()
}

// until lets time pass until something is so.
func (w *run) until(is func() bool) {
	for steps := 0; w.broken == "" && !is(); steps++ {
		if steps == calmSteps {
			w.breaks(onlyProven, "nothing has happened for long, and nodes prove nothing")
		}
		w.step()
	}
}

// isWhole reports whether all transactions have ended and all nodes have proven it moments ago.
func (w *run) isWhole() bool {
	return w.Quiet() && !slices.ContainsFunc(w.nodes, func(n *node) bool { return n.pages.Mode() != cache.ModeFollowed || n.pages.ProofAge() > world.Bound/2 })
}

// round is a round of a client at a node.
func (w *run) round(t *tracker, n *node, d cache.Directives) {
	rounds := t.rounds
	for pages := 0; t.rounds == rounds && w.broken == ""; pages++ {
		if pages == 100 {
			w.breaks(fewPages, "a round of client %d at %s does not end: %+v", t.number, n, t.cursor)
		}
		w.until(func() bool { return t.asks == nil })
		t.rests = w.Now()
		w.track(t, n, d)
		w.until(func() bool { return t.asks == nil })
	}
}

// compare compares a copy with the list.
func (w *run) compare(t *tracker) {
	has := w.Present(&t.q)
	if len(has) != len(t.rows) {
		w.breaks(hasAll, "client %d, marks %t: %d rows, not %d", t.number, t.marks, len(t.rows), len(has))
	}
	for _, v := range has {
		row, held := t.rows[v.Values.Row]
		if !held || row.Text() != v.Text() {
			w.breaks(hasAll, "client %d, marks %t: row %d is %q, not %q", t.number, t.marks, v.Values.Row, row.Text(), v.Text())
		}
	}
}

// deploy starts all nodes anew, one after the other, each with the end of the log alone. Another tenant's rows change meanwhile.
func (w *run) deploy() {
	for range 100 {
		w.step()
	}
	w.until(w.isWhole)
	w.Trim()
	for i := range w.nodes {
		if w.broken != "" {
			return
		}
		w.storeCheckpoint(w.nodes[(i+1)%len(w.nodes)])
		w.start(i)
		if len(w.Tenants) > 1 {
			w.Change(w.Tenants[1])
		}
		w.until(w.isWhole)
	}
	for _, t := range w.trackers {
		for _, n := range w.nodes {
			none := w.counts["rounds: none"]
			w.round(t, n, cache.Directives{})
			if w.counts["rounds: none"] == none {
				w.breaks(restIsOne, "client %d at %s, after a deployment", t.number, n)
			}
		}
	}
}

// storeCheckpoint lets a node store its checkpoint.
func (w *run) storeCheckpoint(n *node) {
	stored, c := false, n.pages.Checkpoint()
	w.request(func() { stored = n.log.SetCheckpoint(n.lives, c) == nil }, func() {})
	w.until(func() bool { return stored })
}
