package world_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/page"
	"listedge/internal/world"
)

// pages are what clients of lists do.
type pages struct {
	walks []*walk
}

// nodePages is the cache of a node.
type nodePages struct {
	*cache.Cache
	run           *run
	node          *node
	room          cache.Room
	roomy, narrow bool // it forgets no change; its pages have room for few bytes
	joined        joined
}

// ask is a request.
type ask struct {
	number  int
	node    *node
	kind    askKind
	q       page.Query
	walk    *walk
	arrived time.Time
	stepped time.Duration // of the node, then
	ended   time.Time
	shows   time.Time // what it shows was so then, or later
	result  shown
	err     error
}

// shown is a page as a client gets it.
type shown struct {
	rows  []string
	next  string        // the cursor of the page behind it; empty = there is none
	age   time.Duration // since when it may not equal the database
	from  string        // memory, redis or origin
	stale bool          // it is marked so

	rounded time.Duration // how much less the age may be
}

type askKind uint8

const (
	ordinary askKind = iota
	noCache
	onlyIfCached
	askKinds
)

func (k askKind) String() string { return [...]string{"ordinary", "no-cache", "only-if-cached"}[k] }

// walk is a client that reads a list page by page.
type walk struct {
	q     page.Query
	from  time.Time // the earliest moment that a page may show; zero = it has no page yet
	seen  map[string]int
	waits bool
}

// How long a page that is judged by its age is fresh, and how much longer it may be served.
const pageTTL, maxStale = time.Second, 10 * time.Second

func (w *run) newPages(n *node) *nodePages {
	p := &nodePages{run: w, node: n}
	r := w.Rand()
	roomy := r.IntN(3) == 0 || w.ample
	budget := &replica.Budgets{Rows: 1 << 20, Changes: 1 << 20, Parked: 1 << 20, IDs: 1 << 16, Lists: 16, Range: 2 + r.IntN(6), Released: 1 << 16}
	if !roomy {
		budget.Rows, budget.Changes, budget.Parked, budget.Lists = 1000<<r.IntN(5), 300<<r.IntN(6), 500<<r.IntN(5), 3+r.IntN(4)
	}
	p.roomy, p.narrow = r.IntN(2) == 0 || w.ample, r.IntN(4) == 0 && !w.ample
	if !p.roomy {
		budget.IDs = 2*560 + 168*(3+r.IntN(8))
	}
	p.room = cache.Room{Bytes: page.MaxBytes, Gone: 2, GoneBytes: page.MaxGoneBytes}
	if p.narrow {
		p.room.Bytes, p.room.GoneBytes = []int{100, 700}[r.IntN(2)], []int{10, 40, 80}[r.IntN(3)]
	}
	var err error
	p.Cache, err = cache.New(cache.Options{Origin: p, Memory: 1 << 20, Rows: budget, Room: p.room, Redis: n.redis.Client, Followed: n.followed,
		TTL: pageTTL, Bound: world.Bound, MaxStale: maxStale, FillTimeout: time.Second, Clock: n.machine.Clock, CommitApplied: func(time.Duration) {},
		Hurry:      n.log.Hurry,
		Mismatched: func(m cache.Mismatch) { w.breaks(noMismatch, "%s of %s", m.Kind, m.Table.Tenant) }})
	if err != nil {
		panic(err)
	}
	return p
}

// stepPages is what happens to a node's pages in a step.
func (w *run) stepPages(n *node) {
	if w.Happens(world.Stores, 200) {
		w.counts["checkpoints"]++
		c := n.pages.Checkpoint()
		if c != nil {
			w.running.Go(func() { _ = n.log.SetCheckpoint(n.lives, c) })
		}
	}
	if w.Happens(world.Asks, 3) {
		w.ask(n)
	}
	if w.Happens(world.Verifies, 40) {
		n.pages.Cache.Verify(n.lives)
	}
}

// ask sends a request.
func (w *run) ask(n *node) {
	r := w.Rand()
	a := &ask{number: w.counts["requests"], node: n, arrived: w.Now(), stepped: n.stepped, q: w.Queries[r.IntN(len(w.Queries))]}
	a.q.Limit = 1 + r.IntN(4)
	switch k := r.IntN(24); {
	case k < 3:
		a.kind, a.q.Limit = noCache, a.q.Limit+4 // no client that tracks a list asks for such a page
	case k < 4:
		a.kind = onlyIfCached
	case k < 10:
		w.goOn(a)
	}
	if a.walk == nil && r.IntN(3) == 0 {
		rows := w.Present(&a.q)
		if len(rows) > 0 {
			a.q = a.q.Behind(&rows[r.IntN(len(rows))].Row)
		}
	}
	if n.door != nil {
		w.knock(a)
		return
	}
	w.request(func() {
		a.err = a.send()
		a.ended = w.Now()
	}, func() { w.judge(a) })
}

// send is what a server does with a request.
func (a *ask) send() (err error) {
	p, ok := a.node.pages, false
	queried, r := func() {}, cache.Result{}
	switch a.kind {
	case noCache:
		r, ok = p.Proven(&a.q)
		if !ok {
			r, err = p.Bypass(&a.q, queried)
		}
	case onlyIfCached:
		r, err = p.Stored(&a.q)
	default:
		r, ok = p.Hit(&a.q, time.Now())
		if !ok {
			r, err = p.Forward(&a.q, time.Now(), queried)
		}
	}
	if err == nil {
		body, _ := r.Entry.AppendBody(nil, 0, math.MaxInt)
		a.result = shown{age: r.Age, from: r.Source.String(), stale: r.Err != nil}
		err = a.result.read(append(body, '}'))
	}
	return err
}

// read reads the body of a page.
func (s *shown) read(body []byte) error {
	var seen struct {
		Data []json.RawMessage
		Page struct{ NextCursor string }
	}
	err := json.Unmarshal(body, &seen)
	for _, row := range seen.Data {
		s.rows = append(s.rows, string(row))
	}
	s.next = seen.Page.NextCursor
	return err
}

// goOn lets a walk ask for its next page.
func (w *run) goOn(a *ask) {
	r := w.Rand()
	for _, of := range w.pages.walks {
		if !of.waits {
			a.walk = of
		}
	}
	if a.walk == nil && len(w.pages.walks) < 4 {
		a.walk = &walk{q: a.q, seen: map[string]int{}}
		w.pages.walks = append(w.pages.walks, a.walk)
	}
	if a.walk != nil {
		a.walk.q.Limit = 1 + r.IntN(4)
		a.q, a.walk.waits = a.walk.q, true
	}
}

// statement is a query of a page that a node sends.
type statement struct {
	q       page.Query
	keys    []string         // of rows; nil = a page
	primary changefeed.Proof // of a standby
	run     string
	standby bool
	read    page.Read
	err     error
}

// execute runs a statement.
func (p *nodePages) execute(s *statement, began uint64) {
	w := p.run
	limit := s.q.Limit * (1 + w.Rand().IntN(2))
	server, old, isOld := w.Server(), page.Read{}, false
	if !s.standby && s.keys == nil && w.Chance(2) { // the address leads to the old one, if that still answers
		old, isOld = w.ReadOld(&s.q, limit)
	}
	if isOld {
		server = w.Old.Server
	}
	switch {
	case s.standby && s.primary.Timeline != w.TimelineName(), !s.standby && p.node.followed.Refuse(server, s.run) != nil:
		s.err = page.ErrWrongServer
		return
	case isOld:
		s.read = old
		w.counts["old primary"]++
		if s.run == "" && p.joined.timeline <= server.Timeline {
			w.Old.Asked = w.Now()
		}
	case s.keys != nil:
		s.read = w.ReadRows(&s.q, s.keys, p.room.Bytes)
		w.counts["rounds: by key"]++
		if !s.read.End {
			w.counts["rounds: by key, cut"]++
		}
	case s.standby:
		s.read = w.ReadStandby(&s.q, limit, began)
	default:
		s.read = w.Read(&s.q, limit)
	}
	s.read.Began = time.Now()
	w.Tracef("%s runs: %d rows, end %t, at %v", s.name(p.node), len(s.read.Rows), s.read.End, s.read.At)
}

func (s *statement) name(n *node) string {
	return fmt.Sprintf("%s, standby %t, order %d, match %d, search %q, after %q, limit %d, %d keys", n, s.standby, s.q.Order, s.q.Match, s.q.Search, s.q.After,
		s.q.Limit,
		len(s.keys))
}

// Fetch and the next four implement cache.Reader.
func (p *nodePages) Fetch(ctx context.Context, q page.Query, run string) (page.Read, error) {
	return p.send(ctx, &statement{q: q, run: run})
}

func (p *nodePages) FetchFromStandby(ctx context.Context, q page.Query, primary changefeed.Proof) (page.Read, error) {
	return p.send(ctx, &statement{q: q, primary: primary, standby: true})
}

func (p *nodePages) FetchRows(ctx context.Context, q page.Query, keys []string, run string) (page.Read, error) {
	return p.send(ctx, &statement{q: q, keys: keys, run: run})
}

// Verify answers at once: how long it takes is of no interest to others.
func (p *nodePages) Verify(_ context.Context, q page.Query, run string) (page.Read, error) {
	if run != p.run.Run {
		return page.Read{}, page.ErrWrongServer
	}
	p.run.counts["verifications"]++
	return p.run.World.Read(&q, q.Limit), nil
}

func (p *nodePages) HasStandbys() bool { return p.run.Standby }

// send sends a statement, and waits.
func (p *nodePages) send(ctx context.Context, s *statement) (page.Read, error) {
	err := p.run.await(ctx, s.name(p.node), func(m *world.Message) { p.execute(s, m.Began) })
	if err != nil {
		return page.Read{Began: time.Now()}, fmt.Errorf("%w: %w", page.ErrUnavailable, err)
	}
	return s.read, s.err
}
