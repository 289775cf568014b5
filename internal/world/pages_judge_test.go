package world_test

import (
	"fmt"
	"slices"
	"time"

	"listedge/internal/page"
	"listedge/internal/world"
)

// What is judged of pages.
var (
	eachRowOnce  = promise{"Walks", "An ordinary walk, one that did not begin with `cursor=changes`, returns every row that was live from its first page"}
	staleWalk    = promise{"Walks", "A walk over such pages is exact for the rows that were live since the earliest of these moments."}
	freshInBound = promise{"Freshness", "A page served as fresh omits no commit that was acknowledged more than `--freshness-bound` ago"}
	asOldAsAge   = promise{"Freshness", "`Age` says how many seconds ago the page was last known to equal the database."}
	youngAsAsk   = promise{"Freshness", "A request with `Cache-Control: no-cache` gets what was visible when it arrived, or later"}
	staleBound   = promise{"Freshness", "While Postgres fails, known pages are served for `--max-stale`"}
	noMismatch   = promise{"Freshness", "A difference is a broken promise"}
	afterSleep   = promise{"Freshness", "A node whose machine slept trusts no page from before."}
	clockBack    = promise{"Clocks", "A wall clock that is set back changes nothing."}
	oldPrimary   = promise{"Other servers than the primary", "If `--database-url` leads to a standby, or to an old primary that is still running"}
	standbys     = promise{"Other servers than the primary", "What a standby has not replayed is applied to its rows."}
	ofPages      = []promise{eachRowOnce, staleWalk, freshInBound, asOldAsAge, youngAsAsk, staleBound, noMismatch, afterSleep, clockBack, standbys,
		oldPrimary}
)

// overlooked is what a node's clock may count later than it happened: steps of its wall clock below a millisecond.
const overlooked = time.Millisecond

// judge judges an answer.
func (w *run) judge(a *ask) {
	defer w.judgeWalk(a)
	if a.err != nil {
		w.counts["errors"]++
		w.Tracef("request %d to node %d, %s: %v", a.number, a.node.number, a.kind, a.err)
		return
	}
	r, texts := a.result, a.result.rows
	w.counts[r.from]++
	if w.Traces() {
		w.Tracef("request %d to node %d, %s, %s: %d rows of %s, %s old, stale %t", a.number, a.node.number, a.kind, keyOf(&a.q), len(texts), r.from, r.age, r.stale)
	}
	oldest := a.ended.Add(-r.age)
	young := oldest.Add(a.node.stepped - a.stepped + overlooked + r.rounded + 1)
	switch {
	case r.stale:
		w.counts["stale"]++
		if r.age >= pageTTL+maxStale {
			w.breaks(staleBound, "request %d, %s old", a.number, r.age)
		}
	case a.kind == noCache:
		w.counts["no-cache"]++
		if young.Before(a.arrived) {
			w.breaks(youngAsAsk, "request %d is %s old, after %s", a.number, r.age, a.ended.Sub(a.arrived))
		}
	case young.Before(a.arrived.Add(-world.Bound)):
		w.breaks(freshInBound, "request %d is %s old, after %s", a.number, r.age, a.ended.Sub(a.arrived))
	}
	a.shows = oldest
	more := r.next != ""
	if w.Was(&a.q, texts, more, oldest, w.Standby) {
		return
	}
	how := fmt.Sprintf("request %d to node %d, %s: %d rows, more %t, were no page since %s ago: %q", a.number, a.node.number, keyOf(&a.q), len(texts), more,
		r.age, texts)
	may := func(o *world.OldPrimary) bool {
		return !oldest.After(o.Asked) || oldest.Before(o.From.Add(world.Bound*5/4))
	}
	switch old := w.WasOld(&a.q, texts, more, may); {
	case old != nil:
		a.shows = old.From.Add(-1)
	case w.WasOld(&a.q, texts, more, func(o *world.OldPrimary) bool { return a.ended.Before(o.From.Add(5 * world.Bound)) }) != nil:
		w.breaks(oldPrimary, "%s", how)
	default:
		w.breaks(asOldAsAge, "%s", how)
	}
}

// judgeWalk lets a walk go on, and judges one that ends: each row that was live and the same since its first page was on one.
func (w *run) judgeWalk(a *ask) {
	of := a.walk
	if of == nil {
		return
	}
	of.waits = false
	if a.err != nil {
		return // it asks again
	}
	next := a.result.next
	shows := a.shows
	if of.from.IsZero() || shows.Before(of.from) {
		of.from = shows
	}
	for _, text := range a.result.rows {
		of.seen[text]++
	}
	if next != "" {
		after, err := of.q.ParseCursor(new([]byte), []byte(next))
		if err != nil {
			w.breaks(eachRowOnce, "a cursor that cannot be read: %s", next)
		}
		of.q.After = after
		return
	}
	w.counts["walks"]++
	w.pages.walks = slices.DeleteFunc(w.pages.walks, func(other *walk) bool { return other == of })
	if w.Standby || of.from.Before(w.Now().Add(-50*world.Bound)) {
		return
	}
	for _, v := range w.Present(&of.q) {
		if w.Lived(&of.q, v, of.from) && of.seen[v.Text()] != 1 {
			w.breaks(eachRowOnce, "row %d was on %d pages in the %s of a walk of %s", v.Values.Row, of.seen[v.Text()], w.Now().Sub(of.from), keyOf(&of.q))
		}
	}
}

func keyOf(q *page.Query) string {
	return fmt.Sprintf("%s order %d, match %d, search %q, after %q, limit %d", q.List.Name, q.Order, q.Match, q.Search, q.After, q.Limit)
}
