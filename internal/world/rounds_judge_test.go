package world_test

import (
	"slices"
	"time"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/internal/world"
)

// What is judged of clients that keep a copy of a list.
var (
	hasAll      = promise{"Rounds", "After a round, a client that follows [the steps](TUTORIAL.md#keep-a-copy-in-step) has every change"}
	restIsOne   = promise{"Rounds", "A round without a change is one request, answered from memory."}
	fewPages    = promise{"Rounds", "With changes it takes at most ⌊rows / `limit`⌋ + ⌊removals / 32⌋ + 1 requests"}
	seldomWhole = promise{"Rounds", "A round is full, which is the whole list, the first time, and when it cannot be known what has changed:"}
	onlyProven  = promise{"Rounds", "Nothing is answered without a proof:"}
	ownGone     = promise{"Rounds", "It never names those of another tenant."}
	youngRound  = promise{"Freshness", "A round with `no-cache` waits the same way, for up to the bound, then 503."}
	ofRounds    = []promise{hasAll, restIsOne, fewPages, seldomWhole, onlyProven, ownGone, youngRound}
)

// judgePage judges one, and returns the moment that it shows, or shows at least.
func (w *run) judgePage(a *trackAsk) (shows time.Time) {
	t, p := a.tracker, &a.page
	shows = a.ended.Add(-p.Age)
	w.counts["rounds: "+p.Kind.String()]++
	if p.Cause != cache.NotFull {
		w.counts["rounds: whole, "+p.Cause.String()]++
	}
	if w.Traces() {
		w.Tracef("%s: %s, %d rows, gone %v, ended %t, whole because %q, of %s, %s old, at %v", a, p.Kind, len(p.Rows), p.Gone, p.Ended, p.Cause, p.Source, p.Age,
			p.Next.Seen)
	}
	young := shows.Add(a.node.stepped - a.stepped + overlooked + 1)
	switch {
	case a.NoCache && young.Before(a.arrived):
		w.breaks(youngRound, "%s: %s old, after %s", a, p.Age, a.ended.Sub(a.arrived))
	case young.Before(a.arrived.Add(-world.Bound)):
		w.breaks(onlyProven, "%s: %s old, after %s", a, p.Age, a.ended.Sub(a.arrived))
	}
	if a.OnlyIfCached && p.Source != cache.Memory || p.Kind == cache.NoChange && (p.Source != cache.Memory || !p.Ended) {
		w.breaks(restIsOne, "%s: from %s, ended %t", a, p.Source, p.Ended)
	}
	ids := map[int]bool{}
	for _, row := range p.Rows {
		i := w.Number(row.Key())
		ids[i] = true
		if !slices.ContainsFunc(w.Versions(&t.q, i, shows), func(v *world.Version) bool { return v != nil && v.Text() == row.Text() }) {
			w.breaks(asOldAsAge, "%s: row %d was not so since %s ago", a, i, p.Age)
		}
	}
	for _, text := range p.Gone {
		ids[w.gone(text)] = true
	}
	if len(ids) != len(p.Rows)+len(p.Gone) || p.Ended != (p.Next.Kind == page.AtEnd) {
		w.breaks(hasAll, "%s: %d ids, ended %t: %+v", a, len(ids), p.Ended, p.Next)
	}
	w.judgePages(a, ids)
	return shows
}

// judgePages judges what a round takes: a page that does not end it is full, and names what has changed. ids are all that the page
// names.
func (w *run) judgePages(a *trackAsk, ids map[int]bool) {
	t, p, known := a.tracker, &a.page, a.from.Known().At
	room := a.node.pages.room
	if len(p.Rows) > a.limit || len(p.Gone) > room.Gone {
		w.breaks(fewPages, "%s: %d rows, %d gone", a, len(p.Rows), len(p.Gone))
	}
	joined := a.node.pages.joined.at
	knew := joined.Term != 0 && a.from.Known().Compare(changefeed.EndOf(joined)) >= 0
	if p.Cause == cache.FullJoined && knew || p.Cause == cache.FullDropped && a.node.pages.roomy {
		w.breaks(seldomWhole, "%s: it knew %v, and the node all since %v", a, known, joined)
	}
	w.counts["rounds: gone"] += len(p.Gone)
	if p.Kind == cache.NoChange && known.Compare(a.node.pages.joined.at) < 0 {
		w.counts["rounds: none, from before the log"]++
	}
	if !p.Covers.None {
		return
	}
	if p.Next.Seen.Compare(a.from.Seen) < 0 || a.from.Epoch != p.Next.Epoch {
		w.breaks(hasAll, "%s: from %+v back to %+v", a, a.from, p.Next)
	}
	for i := range ids {
		if t.term == p.Next.Seen.Term && !w.Written(&t.q, i, t.since) { // the next term may settle again what the one before did
			w.breaks(ownGone, "%s: row %d has not changed since %s ago", a, i, a.ended.Sub(t.since))
		}
	}
	if !p.Ended {
		w.counts["rounds: cut"]++
	}
	if !p.Ended && !a.node.pages.narrow && len(p.Rows) < a.limit && len(p.Gone) < room.Gone {
		w.breaks(fewPages, "%s: a page of %d rows, %d gone goes on", a, len(p.Rows), len(p.Gone))
	}
}

// judgeCopy judges a copy at the end of a round: each row is as it was at the moment that the round promises, or later, and so is
// each place. A row that has moved since may be nowhere: at neither place then.
func (w *run) judgeCopy(t *tracker) {
	w.counts["rounds"]++
	for i := range world.Rows {
		row, held := t.rows[i]
		all := w.Versions(&t.q, i, t.since)
		places, is := map[list.Position]bool{}, false
		for _, v := range all {
			if v == nil {
				is = is || !held
				continue
			}
			places[v.In(&t.q)] = true
			is = is || held && v.Text() == row.Text()
		}
		if !is && (held || len(places) < 2) {
			w.breaks(hasAll, "client %d, marks %t: row %d is %q, and was not in the last %s", t.number, t.marks, i, row.Text(), w.Now().Sub(t.since))
		}
	}
}
