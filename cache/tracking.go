package cache

import (
	"context"
	"errors"
	"time"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

// ErrUnproven: no page for a client that tracks a list, because nothing proves at the moment that this node has all
// changes, or not those that the client has seen. The client asks again, with the same cursor.
var ErrUnproven = errors.New("the changes are not proven")

// Directives are what a request's Cache-Control asks for.
type Directives struct {
	NoCache      bool // a proof that is younger than the request
	OnlyIfCached bool // nothing is read or waited for; ErrNotStored if it must be
}

// TrackedKind is what a page for a client that tracks a list has.
type TrackedKind uint8

// The kinds.
const (
	NoChange TrackedKind = iota
	Delta                // the rows that have changed
	Full                 // a part of the list
	TrackedKinds
)

func (k TrackedKind) String() string { return [...]string{"none", "delta", "full"}[k] }

// FullCause is why a client gets the whole list.
type FullCause uint8

// The causes.
const (
	NotFull     FullCause = iota // the page does not begin a whole list
	FullFirst                    // the client has nothing
	FullEpoch                    // the log of changes is another one, or the list has another description
	FullJoined                   // the node has begun to follow the log later
	FullDropped                  // the node has forgotten which rows have changed: they were too many
	FullUnnamed                  // a change has not named its rows
	FullCauses
)

func (c FullCause) String() string {
	return [...]string{"", "first", "epoch", "joined", "dropped", "unnamed"}[c]
}

// Covers is the part of the list of which a page has every row.
type Covers struct {
	None           bool          // of no part: it has rows that have changed
	After, Through list.Position // from behind After to Through; empty = from the start, to the end
}

// Tracked is a page for a client that tracks a list.
type Tracked struct {
	Kind   TrackedKind
	Cause  FullCause // of the first page of a whole list
	Rows   []*list.Row
	Covers Covers
	Gone   []string // keys as clients see them, of rows that the list does not have
	Next   page.Tracking
	Ended  bool // with this page the client knows all; Next is for the next round

	Age    time.Duration // when it was made, since the moment when it was known to equal the database, at the most
	Source Source        // Origin if rows were read
	Query  Span          // the statement, also if it failed
}

// Track returns the page that a client gets which tracks the query's list and stands there. It calls queried after a
// statement. The error is ErrUnproven, ErrNotStored or the origin's own.
func (c *Cache) Track(q *page.Query, from page.Tracking, d Directives, queried func()) (Tracked, error) {
	if !c.enter() {
		return Tracked{}, errClosed
	}
	defer c.running.Done()
	t := &tracking{Cache: c, query: q, list: listOf(q), from: from, Directives: d, queried: queried, arrived: c.clock.Now()}
	timer := time.NewTimer(c.followed.bound)
	defer timer.Stop()
	for {
		beat, start := c.beats.next(), c.replica.Begin()
		proof := c.clock.Of(start.Proven)
		if t.mayAnswer(&start, proof) {
			p, err := t.answer(start)
			p.Age = c.clock.Now() - proof
			if !errors.Is(err, errMoved) {
				return p, err
			}
			continue
		}
		if d.OnlyIfCached {
			return Tracked{}, ErrNotStored
		}
		if !c.awaitBeat(beat, timer.C) {
			return Tracked{}, ErrUnproven
		}
	}
}

// errMoved: the state has moved on between two looks at it.
var errMoved = errors.New("another state")

// tracking is one request of a client that tracks a list.
//
// Why a client has, at the end of a round, the list as a snapshot shows it which sees all that Since does. Let a row have
// changed between Since of the round before and this one's, last at the point h, and let a page of the round have gone
// past h. If h was the row's last change on that page's node, the page had the row, as it was at h or later. Else the node
// knew a later change, and so does Since: no page shows an earlier state than the pages before (Seen), and the last
// page's state is Since. Then h was not the last. What is read by key is read after the state was noted, so it is as late
// as the state. A whole list is the same with stretches: each page shows at least the state of the first, which is Since.
type tracking struct {
	*Cache
	Directives
	query   *page.Query
	list    replica.Key
	from    page.Tracking
	queried func()
	arrived time.Duration
	source  Source
	asked   Span // the statement
}

// mayAnswer reports whether a page of the state may be served: all that the client has seen is in it, and a proof is young
// enough. It is younger than the request where the client asks for it, and where the client knows another epoch: this
// node's may be over.
func (t *tracking) mayAnswer(start *replica.Start, proof time.Duration) bool {
	if !t.following.Load() || !start.Follows(t.query.List) || start.Proven.IsZero() {
		return false
	}
	foreign := t.isForeign(start)
	if t.clock.Now()-proof >= t.followed.bound || (foreign || t.NoCache) && proof < t.arrived {
		return false
	}
	return foreign || start.At.Began.Compare(t.from.Seen) >= 0
}

// isForeign reports whether what the client knows is of another epoch than the state.
func (t *tracking) isForeign(start *replica.Start) bool {
	return t.from.Kind != page.Untracked && t.from.Epoch != page.EpochOf(start.Epoch, t.query.List)
}

func (t *tracking) answer(start replica.Start) (Tracked, error) {
	switch {
	case t.from.Kind == page.Untracked:
		return t.full(start, FullFirst)
	case t.isForeign(&start):
		return t.full(start, FullEpoch)
	case t.from.Kind == page.InFull:
		return t.full(start, NotFull)
	}
	c := t.replica.Changes(t.list.Table, t.from.Known(), t.query.Limit+t.room.Gone)
	switch {
	case c.Start.IsAfterReset(start), !c.Start.Follows(t.query.List):
		return Tracked{}, errMoved
	case c.Lack != replica.Complete:
		return t.full(c.Start, FullEpoch+FullCause(c.Lack))
	}
	return t.delta(&c)
}

// delta makes a page of rows that have changed.
func (t *tracking) delta(c *replica.Changes) (Tracked, error) {
	err := t.complete(c)
	if err != nil {
		return Tracked{Query: t.asked}, err
	}
	p := t.page(&c.Start, c.Start.At.Began)
	p.Covers.None = true
	n := p.take(t.query, c.Rows, t.room)
	if n > 0 {
		p.Kind = Delta
	}
	if n < len(c.Rows) || c.More {
		p.Ended, p.Next.Kind, p.Next.Since = false, page.InDelta, c.Rows[n-1].At
	}
	return p, nil
}

// complete reads the rows that have changed and that the replica does not have. Without room for all, the changes end
// behind the last one that was read. They end before a row that cannot be shown, too, as far as that is known: the page
// that begins with it fails.
func (t *tracking) complete(c *replica.Changes) error {
	var keys []string
	for i := range c.Rows {
		if !c.Rows[i].Gone && c.Rows[i].Row == nil {
			keys = append(keys, c.Rows[i].Key)
		}
	}
	if keys == nil {
		return nil
	}
	read, err := t.readRows(&c.Start, keys)
	if errors.Is(err, page.ErrRow) && len(keys) > 1 { // those before it, which the list does not have, are not told apart from it
		keys = keys[:1]
		read, err = t.readRows(&c.Start, keys)
	}
	if errors.Is(err, page.ErrRow) && c.Rows[0].Key != keys[0] {
		keys, err = nil, nil
	}
	if err != nil {
		return err
	}
	rows, asked := read.Rows, 0
	for i := range c.Rows {
		row := &c.Rows[i]
		if row.Gone || row.Row != nil {
			continue
		}
		if asked == len(keys) || len(rows) == 0 && !read.End {
			c.Rows, c.More = c.Rows[:i], true
			return nil
		}
		for asked++; len(rows) > 0 && rows[0].Key() == row.Key; rows = rows[1:] { // one, except where partitions have it twice
			row.Row = &rows[0]
		}
	}
	return nil
}

// readRows reads the rows of keys.
func (t *tracking) readRows(start *replica.Start, keys []string) (page.Read, error) {
	return t.read(start, func(ctx context.Context, run string) (page.Read, error) {
		return t.options.Origin.FetchRows(ctx, *t.query, keys, run)
	})
}

// Room is what a page has for a client that tracks a list, besides its limit: bytes of rows, keys of rows that are gone, and
// bytes of those in a header.
type Room struct{ Bytes, Gone, GoneBytes int }

// take puts changed rows on the page, in their order, as many as there is room for and at least one, and returns their
// number. A row that the list does not have is gone for it.
func (p *Tracked) take(q *page.Query, changed []replica.Changed, most Room) (n int) {
	var header []byte
	for size := 0; n < len(changed); n++ {
		row := changed[n].Row
		if row != nil && row.Match&q.Match == q.Match {
			size += len(row.Text())
			if len(p.Rows) == q.Limit || size > most.Bytes && len(p.Rows) > 0 {
				return n
			}
			p.Rows = append(p.Rows, row)
			continue
		}
		key := q.List.KeyText(changed[n].Key)
		if len(p.Gone) > 0 {
			header = append(header, ", "...)
		}
		header = page.AppendHeaderText(header, key)
		if len(p.Gone) == most.Gone || len(header) > most.GoneBytes && len(p.Gone) > 0 {
			return n
		}
		p.Gone = append(p.Gone, key)
	}
	return n
}

// full makes a page of the whole list: its first one if there is a cause, else the one behind the client's position.
func (t *tracking) full(start replica.Start, cause FullCause) (Tracked, error) {
	seen, after := start.At.Began, list.Position("")
	if cause == NotFull {
		seen, after = t.from.Seen, t.from.After
	}
	rows, more, err := t.part(start, after)
	if err != nil {
		return Tracked{Query: t.asked}, err
	}
	p := t.page(&start, seen)
	p.Kind, p.Cause, p.Rows, p.Covers.After = Full, cause, rows, after
	if more {
		last := t.query.List.Position(rows[len(rows)-1], t.query.Order)
		p.Covers.Through, p.Ended, p.Next.Kind, p.Next.After = last, false, page.InFull, last
	}
	return p, nil
}

// part returns the rows behind a position, as the state shows them or a later one. They are cut from the replica, or read
// from the primary: nothing says which state any other page shows.
func (t *tracking) part(start replica.Start, after list.Position) (rows []*list.Row, more bool, err error) {
	p, rows, ok := t.replica.Read(nil, &t.list, after, t.query.Limit, t.room.Bytes)
	switch {
	case ok && start.Is(t.replica.Begin()):
		return rows, p.More, nil
	case ok:
		return nil, false, errMoved
	}
	read, err := t.read(&start, func(ctx context.Context, run string) (page.Read, error) {
		q := *t.query
		q.After = after
		return t.options.Origin.Fetch(ctx, q, run)
	})
	if err != nil {
		return nil, false, err
	}
	read.At.Began = start.At.Began
	t.replica.Merge(&replica.Fill{Key: t.list, After: after, Read: read, Start: start})
	n := firstPage(read.Rows, t.query.Limit)
	rows = rows[:0]
	for i := range n {
		rows = append(rows, &read.Rows[i])
	}
	return rows, n < len(read.Rows) || !read.End, nil
}

// read runs a statement on the primary of the state. It begins after the state was noted, and nobody else's is waited for.
func (t *tracking) read(start *replica.Start, statement func(ctx context.Context, run string) (page.Read, error)) (page.Read, error) {
	if t.OnlyIfCached {
		return page.Read{}, ErrNotStored
	}
	ctx, cancel := context.WithTimeout(t.ctx, t.options.FillTimeout)
	defer cancel()
	t.fills.Add(1)
	read, err := statement(ctx, start.At.StartedAt)
	t.source, t.asked = Origin, Span{read.Began, read.Took}
	if !read.Began.IsZero() {
		t.queried()
	}
	if err == nil && read.At.StartedAt != start.At.StartedAt {
		err = page.ErrWrongServer
	}
	if errors.Is(err, page.ErrWrongServer) {
		t.wrongServers.Add(1)
	}
	if err != nil {
		t.fillErrors.Add(1)
	}
	return read, err
}

// page is one without rows, with which a client knows all changes up to the end of a heartbeat.
func (t *tracking) page(start *replica.Start, seen changefeed.Position) Tracked {
	next := page.Tracking{Kind: page.AtEnd, Epoch: page.EpochOf(start.Epoch, t.query.List), Seen: seen}
	return Tracked{Ended: true, Next: next, Source: t.source, Query: t.asked}
}
