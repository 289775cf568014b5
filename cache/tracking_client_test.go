package cache

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// trackClient is a client: a copy by id, and a cursor. It removes what a whole list did not show either by stretches or by
// marks.
type trackClient struct {
	list  trackedQuery
	marks bool
	trackCopy
	past     []trackCopy
	requests int // that were answered with a page
	rounds   int
	mixed    bool // it has rows of a later epoch than its cursor
	asks     *trackRequest
}

// trackCopy is what a client stores.
type trackCopy struct {
	rows   map[int]markedRow
	mark   int
	cursor page.Tracking
	newest int // epoch that rows are of
}

type markedRow struct {
	list.Row
	mark int
}

// trackRequest is a request under way.
type trackRequest struct {
	node     *worldNode
	limit    int
	from     page.Tracking
	d        Directives
	states   int // visible when it was sent, and of which epoch
	db       *worldDB
	answered bool
	p        Tracked
	err      error
}

func (c *trackClient) query(limit int) *page.Query {
	return &page.Query{List: listtest.Items, Tenant: worldTable(c.list.workspace).Tenant, Match: c.list.match, Limit: limit}
}

// back: only the cursor goes back, and of a client with marks the copy.
func (c *trackClient) back(to int) {
	before := c.past[to]
	c.past = c.past[:to]
	newest := c.newest
	if c.marks {
		c.trackCopy = before
	}
	c.cursor = before.cursor
	c.mixed = newest > before.newest && !c.marks || c.mixed
}

func (c *trackClient) save() trackCopy {
	own := c.trackCopy
	own.rows = maps.Clone(c.rows)
	return own
}

func idOf(key string) int {
	return slices.Index(worldKeys, key)
}

var worldKeys = func() (keys []string) {
	for i := range worldIDs {
		keys = append(keys, listtest.Key(listtest.ID(i)))
	}
	return keys
}()

func idOfText(text string) int {
	key, ok := listtest.Items.ParseKey([]byte(text))
	if !ok {
		return -1
	}
	return idOf(key)
}

// apply is what a client does with a page. The copy and the cursor are stored together.
func (c *trackClient) apply(p *Tracked, epoch int) {
	c.past = append(c.past, c.save())
	shown := map[int]bool{}
	for _, row := range p.Rows {
		shown[idOf(row.Key())] = true
	}
	whole := !p.Covers.None
	if whole && c.marks && p.Covers.After == "" {
		c.mark++
	}
	if whole && !c.marks {
		maps.DeleteFunc(c.rows, func(id int, row markedRow) bool {
			at := listtest.Items.Position(&row.Row, 0)
			return !shown[id] && at > p.Covers.After && (p.Covers.Through == "" || at <= p.Covers.Through)
		})
	}
	for _, text := range p.Gone {
		delete(c.rows, idOfText(text))
	}
	for _, row := range p.Rows {
		c.rows[idOf(row.Key())] = markedRow{*row, c.mark}
	}
	if whole && c.marks && p.Covers.Through == "" {
		maps.DeleteFunc(c.rows, func(_ int, row markedRow) bool { return row.mark != c.mark })
	}
	c.newest = max(c.newest, epoch)
	c.cursor = p.Next
	c.requests++
	if p.Ended {
		c.rounds++
	}
}

// send sends a request to a node.
func (w *trackingWorld) send(c *trackClient, n *worldNode, limit int, d Directives) {
	q := c.query(limit)
	text := q.AppendTracking(nil, &c.cursor)
	from, err := q.ParseTracking(text)
	if err != nil {
		panic(err)
	}
	r := &trackRequest{node: n, limit: limit, from: from, d: d, states: len(w.db().states), db: w.db()}
	c.asks = r
	w.running.Go(func() {
		p, err := n.Track(q, from, d, func() {})
		w.mu.Lock()
		defer w.mu.Unlock()
		r.p, r.err, r.answered = p, err, true
	})
}

// flight is a statement of a request.
type flight struct {
	client int
	q      page.Query
	keys   []string // nil = a page of the list
	read   *page.Read
	reply  chan page.Read
}

var _ Reader = (*trackingWorld)(nil)

func (w *trackingWorld) HasStandbys() bool { return false }

func (w *trackingWorld) FetchFromStandby(context.Context, page.Query, changefeed.Proof) (page.Read, error) {
	panic("a standby is asked")
}

func (w *trackingWorld) Verify(context.Context, page.Query, string) (page.Read, error) {
	panic("a page is verified")
}

func (w *trackingWorld) Fetch(_ context.Context, q page.Query, _ string) (page.Read, error) {
	return w.fly(q, nil)
}

func (w *trackingWorld) FetchRows(_ context.Context, q page.Query, keys []string, _ string) (page.Read, error) {
	return w.fly(q, keys)
}

// fly waits until the world has run the statement, and then answered.
func (w *trackingWorld) fly(q page.Query, keys []string) (page.Read, error) {
	f := &flight{q: q, keys: keys, reply: make(chan page.Read)}
	f.client = slices.IndexFunc(w.clients, func(c *trackClient) bool {
		return *c.query(q.Limit) == page.Query{List: q.List, Tenant: q.Tenant, Match: q.Match, Limit: q.Limit}
	})
	w.mu.Lock()
	w.flights = append(w.flights, f)
	slices.SortStableFunc(w.flights, func(a, b *flight) int { return a.client - b.client })
	w.mu.Unlock()
	read, ok := <-f.reply
	if !ok {
		return page.Read{}, page.ErrUnavailable
	}
	return read, nil
}

// run runs the statement.
func (w *trackingWorld) run(f *flight) {
	db, c := w.db(), w.clients[f.client]
	read := &page.Read{End: true, At: changefeed.ReadPoint{StartedAt: db.run(), Snapshot: db.snapshot(w.nextXID)}, Began: time.Now()}
	f.read = read
	if f.keys == nil {
		asked := f.q.Limit + 1
		if f.q.After != "" {
			asked = 4*f.q.Limit + 1
		}
		rows := c.list.rowsOf(db.now(), f.q.After)
		read.End = len(rows) < asked
		read.Rows = rows[:min(asked, len(rows))]
		return
	}
	w.count["by id"]++
	size := 0
	for _, key := range f.keys {
		v := *db.now().at(worldKey{c.list.workspace, idOf(key)})
		if v == nil {
			continue
		}
		if size > w.room.bytes {
			read.End = false
			w.count["by id, cut"]++
			return
		}
		size += len(v.row.Text())
		read.Rows = append(read.Rows, v.row)
	}
}

// land ends a flight. ok is false if it failed.
func (w *trackingWorld) land(f *flight, ok bool) {
	w.mu.Lock()
	w.flights = slices.DeleteFunc(w.flights, func(o *flight) bool { return o == f })
	w.mu.Unlock()
	if ok {
		f.reply <- *f.read
	} else {
		close(f.reply)
	}
}

// receive takes the answers that have come.
func (w *trackingWorld) receive() {
	for _, c := range w.clients {
		r := c.asks
		if r == nil {
			continue
		}
		w.mu.Lock()
		answered := r.answered
		w.mu.Unlock()
		if !answered {
			continue
		}
		c.asks = nil
		if r.err != nil {
			w.count[r.err.Error()]++
			continue
		}
		w.checkPage(c, r)
		c.apply(&r.p, w.epochOf(r.p.Next.Epoch))
		w.count[r.p.Kind.String()]++
		if r.p.Kind == NoChange && r.from.Known().At.Compare(r.node.joined.at) < 0 {
			w.count["none, from before the log"]++
		}
		if r.p.Cause != NotFull {
			w.count["full, "+r.p.Cause.String()]++
		}
		w.count["gone"] += len(r.p.Gone)
		if r.p.Ended {
			w.count["rounds"]++
			w.checkCopy(c)
		} else if r.p.Covers.None {
			w.count["delta, cut"]++
		}
	}
}

func (w *trackingWorld) epochOf(epoch uint64) (number int) {
	for _, db := range w.epochs {
		if page.EpochOf(db.epoch(), listtest.Items) == epoch {
			return db.number
		}
	}
	panic("no epoch")
}

// worldError is what the model finds.
type worldError struct{ text string }

func (w *trackingWorld) fail(format string, args ...any) {
	panic(worldError{fmt.Sprintf(format, args...)})
}

// checkPage is the assertion about each page.
func (w *trackingWorld) checkPage(c *trackClient, r *trackRequest) {
	p, db := &r.p, w.epochs[w.epochOf(r.p.Next.Epoch)-1]
	same := r.from.Kind != page.Untracked && r.from.Epoch == p.Next.Epoch
	if r.from.Kind != page.Untracked && w.epochOf(r.from.Epoch) > db.number {
		w.fail("E: from epoch %d back to %d", w.epochOf(r.from.Epoch), db.number)
	}
	if same && p.Next.Seen.Compare(r.from.Seen) < 0 {
		w.fail("M: seen goes back from %+v to %+v", r.from, p.Next)
	}
	if p.Ended != (p.Next.Kind == page.AtEnd) || len(p.Rows) > r.limit || len(p.Gone) > w.room.gone {
		w.fail("D: a page of %d rows, %d gone, ended %t: %+v", len(p.Rows), len(p.Gone), p.Ended, p.Next)
	}
	if r.d.NoCache && r.from.Kind != page.InFull && (db.number < r.db.number || db == r.db && db.since(p.Next.Seen) < r.states-1) {
		w.fail("N: at %v without what was visible: %d of %d states", p.Next.Seen, db.since(p.Next.Seen), r.states-1)
	}
	if r.d.OnlyIfCached && p.Source != Memory {
		w.fail("O: it was read")
	}
	for _, row := range p.Rows {
		id := idOf(row.Key())
		if id < 0 || !c.list.has(&version{row: *row}) || !slices.ContainsFunc(db.versions(worldKey{c.list.workspace, id}, 0),
			func(v *version) bool { return v != nil && v.row == *row }) {
			w.fail("P: row %q is not of the list", row.Text())
		}
	}
	if !p.Covers.None {
		return
	}
	known := r.from.Known()
	if !same || p.Next.Known().Compare(known) < 0 || p.Ended && p.Next.Seen.Compare(known.At) < 0 {
		w.fail("M: since goes back from %+v to %+v", r.from, p.Next)
	}
	ids := map[int]bool{}
	for _, row := range p.Rows {
		ids[idOf(row.Key())] = true
	}
	for _, text := range p.Gone {
		ids[idOfText(text)] = true
	}
	if len(ids) != len(p.Rows)+len(p.Gone) {
		w.fail("D: an id twice: %v", ids)
	}
	for id := range ids {
		if !slices.ContainsFunc(db.settlements, func(s settlement) bool {
			return s.at.Compare(p.Next.Seen) <= 0 && known.Compare(changefeed.EndOf(s.at)) < 0 &&
				slices.ContainsFunc(s.settled, func(x *worldTransaction) bool {
					return x.named && slices.ContainsFunc(x.rows, func(r worldChange) bool { return r.key == worldKey{c.list.workspace, id} })
				})
		}) {
			w.fail("C, P: id %d has not changed behind %+v", id, r.from)
		}
	}
	if !p.Ended && !w.narrow && len(p.Rows) < r.limit && len(p.Gone) < w.room.gone {
		w.fail("D: a page that is not full: %d rows, %d gone", len(p.Rows), len(p.Gone))
	}
}

// checkCopy is the assertion about the end of a round: each position of the copy has its value of a snapshot at or after
// Since.
func (w *trackingWorld) checkCopy(c *trackClient) {
	number := w.epochOf(c.cursor.Epoch)
	if c.mixed && number < c.newest {
		return
	}
	db := w.epochs[number-1]
	state := db.since(c.cursor.Seen)
	for id := range worldIDs {
		have, held := c.rows[id]
		values := map[list.Position][]string{} // by position; of a version that is elsewhere: empty
		all := db.versions(worldKey{c.list.workspace, id}, state)
		for _, v := range all {
			if c.list.has(v) {
				values[listtest.Items.Position(&v.row, 0)] = nil
			}
		}
		if held {
			values[listtest.Items.Position(&have.Row, 0)] = nil
		}
		for at := range values {
			for _, v := range all {
				text := ""
				if c.list.has(v) && listtest.Items.Position(&v.row, 0) == at {
					text = v.row.Text()
				}
				values[at] = append(values[at], text)
			}
			text := ""
			if held && listtest.Items.Position(&have.Row, 0) == at {
				text = have.Text()
			}
			if !slices.Contains(values[at], text) {
				w.fail("A: client of %+v, marks %t, since %v: row %d at %x is %q, not of %q", c.list, c.marks, c.cursor.Seen, id, at, text, values[at])
			}
		}
	}
}
