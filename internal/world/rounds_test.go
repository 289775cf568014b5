package world_test

import (
	"fmt"
	"maps"
	"time"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/internal/world"
)

// tracker is a client that keeps a copy of a list by rounds. What a whole list does not show it removes by stretches or, of two,
// the second, by marks: then the copy goes back with its cursor.
type tracker struct {
	number int
	q      page.Query // without After and Limit
	marks  bool
	copied
	past   []copied // before pages
	asks   *trackAsk
	sent   int       // requests
	gaveUp int       // of them
	late   int       // of those, under way
	rests  time.Time // until then, between rounds
	rounds int
}

// copied is what it stores.
type copied struct {
	rows   map[int]kept // by the number of the row
	mark   int
	cursor page.Tracking
	since  time.Time // what the cursor knows of was so then, or later
	term   uint64    // likewise: what was settled in it
}

// kept is a row of a copy.
type kept struct {
	list.Row
	at   list.Position
	mark int
}

// joined is the first heartbeat that a node has read since it last began to follow, and the latest timeline that it has followed.
type joined struct {
	at       changefeed.Position
	timeline uint32
}

// Reset implements changefeed.Listener.
func (j *joined) Reset(epoch string, _ changefeed.ResetCause) {
	name, _ := fleet.ParseEpoch(epoch)
	j.at, j.timeline = changefeed.Position{}, max(j.timeline, name.Timeline)
}

// Beat implements changefeed.Listener.
func (j *joined) Beat(b changefeed.Beat) {
	if j.at.Term == 0 {
		j.at = b.At
	}
}

// trackAsk is a request.
type trackAsk struct {
	tracker *tracker
	node    *node
	limit   int
	from    page.Tracking
	cache.Directives
	arrived, ended time.Time
	stepped        time.Duration // of the node, when it arrived
	page           cache.Tracked
	err            error
}

func (a *trackAsk) String() string {
	return fmt.Sprintf("request %d of client %d to node %d, limit %d, %+v", a.tracker.sent, a.tracker.number, a.node.number, a.limit, a.Directives)
}

// trackers returns clients of lists that can be tracked.
func (w *run) newTrackers() (all []*tracker) {
	if !w.List.Tracks() {
		return nil
	}
	r := w.Rand()
	for i := range 2 {
		t := &tracker{number: i, marks: i == 1, q: w.Queries[0], copied: copied{rows: map[int]kept{}}}
		if r.IntN(2) == 0 {
			t.q.Match = w.Queries[2].Match
		}
		all = append(all, t)
	}
	return all
}

// stepRounds is what happens in a step at a node.
func (w *run) stepRounds(n *node) {
	if len(w.trackers) > 0 && w.Happens(world.Tracks, 3) {
		r := w.Rand()
		w.track(w.trackers[r.IntN(len(w.trackers))], n, cache.Directives{NoCache: r.IntN(12) == 0, OnlyIfCached: r.IntN(25) == 0})
	}
}

// track lets a client go on, at a node.
func (w *run) track(t *tracker, n *node, d cache.Directives) {
	switch {
	case t.asks != nil && t.late == 0 && w.Happens(world.GivesUp, 20): // it repeats the cursor
		t.asks, t.late = nil, 1
		t.gaveUp++
	case t.asks != nil || w.Now().Before(t.rests):
		return
	case len(t.past) > 0 && w.Happens(world.GoesBack, 20):
		t.goBack(max(0, len(t.past)-1-w.Rand().IntN(5)))
	}
	a := &trackAsk{tracker: t, node: n, arrived: w.Now(), stepped: n.stepped, Directives: d}
	a.limit = 1 + 2*(t.gaveUp%2) + t.number // no two requests of one moment for the same page are alike
	if w.Chance(4) {
		a.limit = 20 + t.sent
	}
	t.sent++
	q := t.q
	q.Limit = a.limit
	from, err := q.ParseTracking(q.AppendTracking(nil, &t.cursor))
	if err != nil {
		w.breaks(hasAll, "its cursor cannot be read: %v", err)
	}
	a.from, t.asks = from, a
	w.Tracef("%s asks", a)
	w.request(func() {
		a.page, a.err = n.pages.Track(&q, a.from, d, func() {})
		a.ended = w.Now()
	}, func() { w.receive(a) })
}

// goBack: a client was killed, and goes on from what it had stored.
func (t *tracker) goBack(to int) {
	before := t.past[to]
	t.past = t.past[:to]
	if !t.marks { // the copy is stored by itself
		before.rows = t.rows
	}
	t.copied = before
}

// receive takes an answer.
func (w *run) receive(a *trackAsk) {
	t := a.tracker
	if t.asks != a {
		t.late--
		return
	}
	t.asks = nil
	if a.err != nil {
		w.counts["rounds: "+a.err.Error()]++
		w.Tracef("%s: %v", a, a.err)
		return
	}
	t.apply(w, &a.page, w.judgePage(a))
	if a.page.Ended {
		w.judgeCopy(t)
		t.rounds++
		if w.Chance(2) {
			t.rests = w.Now().Add(w.In(60))
		}
	}
}

// apply does what docs/TUTORIAL.md says.
func (t *tracker) apply(w *run, p *cache.Tracked, shows time.Time) {
	t.past = append(t.past[max(0, len(t.past)-20):], t.copied)
	t.rows = maps.Clone(t.rows)
	whole, shown := !p.Covers.None, map[int]bool{}
	for _, row := range p.Rows {
		shown[w.Number(row.Key())] = true
	}
	if whole && t.marks && p.Covers.After == "" {
		t.mark++
	}
	if whole && !t.marks {
		maps.DeleteFunc(t.rows, func(i int, row kept) bool {
			return !shown[i] && row.at > p.Covers.After && (p.Covers.Through == "" || row.at <= p.Covers.Through)
		})
	}
	for _, text := range p.Gone {
		delete(t.rows, w.gone(text))
	}
	for _, row := range p.Rows {
		t.rows[w.Number(row.Key())] = kept{*row, t.q.List.Position(row, t.q.Order), t.mark}
	}
	if whole && t.marks && p.Covers.Through == "" {
		maps.DeleteFunc(t.rows, func(_ int, row kept) bool { return row.mark != t.mark })
	}
	t.cursor = p.Next
	if whole && p.Covers.After == "" || p.Covers.None && p.Ended {
		t.since, t.term = shows, p.Next.Seen.Term
	}
}

// gone returns the number of a row that a page says is gone.
func (w *run) gone(text string) int {
	key, ok := w.List.ParseKey([]byte(text))
	if !ok {
		w.breaks(hasAll, "%q is no key", text)
	}
	return w.Number(key)
}
