package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"listedge/cache/replica"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/page"
	"listedge/internal/world"
)

// A world with real nodes: subscriptions, caches and replicas. Requests come at random, and what they are answered is judged by
// docs/GUARANTEES.md (world_judge_test.go).
//
// Requests and flights are goroutines in a bubble. Each waits for the clock or for a call that the world answers, and the world
// goes on once all of them wait: so it decides their order. Calls that begin at the same moment are sorted.

// inhabited is one run.
type inhabited struct {
	*world.World
	nodes  []*inhabitant
	recent []*found // reads that Redis may have
	walks  []*walk
	counts map[string]int
	steps  int
	lived  time.Duration // how long nodes have run
	broken string        // the first sentence that does not hold, and how; empty = all hold

	running sync.WaitGroup
	mu      sync.Mutex // guards the rest
	asked   []*call    // since the last step
	answers []*ask     // likewise
	calls   []*call
}

// inhabitant is a node.
type inhabitant struct {
	*Cache
	number   int
	run      int // how often a node with this number has begun
	machine  *boottimetest.Machine
	stepped  time.Duration // what its wall clock was set forward: ages count it
	followed *fleet.Followed
	reader   *world.Reader
	lives    context.Context
	end      func()
}

// call is a statement that a node sends.
type call struct {
	node          *inhabitant
	q             page.Query
	primary       changefeed.Proof // of a standby
	run           string
	standby       bool
	began         uint64 // what the standby had replayed
	readAt, endAt time.Time
	read          page.Read
	err           error
	ran           bool
	answered      chan struct{}
}

func (c *call) String() string {
	return fmt.Sprintf("node %d.%d, standby %t, order %d, match %d, search %q, after %q, limit %d", c.node.number, c.node.run, c.standby, c.q.Order,
		c.q.Match, c.q.Search, c.q.After, c.q.Limit)
}

// found is what Redis has of a page: rows, and how old they were then.
type found struct {
	q page.Query
	reading
	at time.Time // when they were known to equal the database
}

// ask is a request.
type ask struct {
	number  int
	node    *inhabitant
	kind    askKind
	q       page.Query
	walk    *walk
	arrived time.Time
	stepped time.Duration // of the node, then
	ended   time.Time
	result  Result
	err     error
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

const inhabitants = 3

// inhabit plays a world, and returns it after its last step, or after the first one that breaks a promise.
func inhabit(of world.Play) *inhabited {
	w := &inhabited{World: world.New(&of), counts: map[string]int{}, nodes: make([]*inhabitant, inhabitants)}
	for i := range w.nodes {
		w.start(i)
	}
	for w.steps < of.Steps && w.broken == "" {
		w.steps++
		w.step()
	}
	w.lived = w.Elapsed()
	for _, n := range w.nodes {
		n.stop()
	}
	w.running.Wait()
	return w
}

// start begins a node in place of another.
func (w *inhabited) start(i int) {
	run := 0
	if w.nodes[i] != nil {
		run = w.nodes[i].run + 1
		w.nodes[i].stop()
	}
	r := w.Rand()
	n := &inhabitant{number: i, run: run, machine: boottimetest.NewMachine(), followed: &fleet.Followed{}}
	n.lives, n.end = context.WithCancel(context.Background())
	n.followed.SetServer(w.Server())
	c, err := New(Options{Origin: &statements{w, n}, Memory: 32 << 20, Followed: n.followed, TTL: time.Second, Bound: world.Bound, MaxStale: 10 * time.Second,
		FillTimeout: time.Second, Clock: n.machine.Clock, CommitApplied: func(time.Duration) {}, Hurry: func(context.Context) { w.Hurry() },
		Mismatched: func(m Mismatch) {
			w.breaks(noMismatch, "%s of %s", m.Kind, m.Table.Tenant)
		}})
	if err != nil {
		panic(err)
	}
	roomy := r.IntN(3) == 0
	budget := replica.Budgets{Rows: 1 << 20, Changes: 1 << 20, Parked: 1 << 20, IDs: 1 << 16, Lists: 16, Range: 2 + r.IntN(6), Released: 1 << 16}
	if !roomy {
		budget.Rows, budget.Changes, budget.Parked, budget.Lists = 1000<<r.IntN(5), 300<<r.IntN(6), 500<<r.IntN(5), 3+r.IntN(4)
	}
	c.replica = replica.New(budget)
	n.Cache = c
	n.reader = w.NewReader(i, n.followed.ObserveEpoch, c, settler{w, n})
	w.nodes[i] = n
	w.Tracef("node %d.%d starts, roomy %t", i, run, roomy)
}

// stop ends a node at once.
func (n *inhabitant) stop() {
	n.end()
	_ = n.Close(n.lives)
}

// step is one step of the world and all that follows of it at once.
func (w *inhabited) step() {
	w.Step()
	w.settle()
	r := w.Rand()
	for i, n := range w.nodes {
		n.reader.Step()
		w.settle()
		switch {
		case w.Happens(world.Restarts, 3000):
			w.start(i)
		case w.Happens(world.ClockSteps, 2000):
			by := w.In(2000) - w.In(1000)
			n.machine.Set(by)
			n.stepped += max(0, by)
			w.Tracef("the clock of node %d steps by %s", i, by)
		case w.Happens(world.Stores, 200):
			w.counts["checkpoints"]++
			c := n.Checkpoint()
			if c != nil {
				w.StoreCheckpoint(c)
			}
		case w.Chance(50):
			n.followed.SetServer(w.Server())
		}
		if w.Happens(world.Asks, 3) {
			w.request(n)
		}
		if w.Happens(world.Copies, 12) {
			w.copy(n)
		}
		if w.Happens(world.Verifies, 40) {
			w.verify(n)
		}
		w.settle()
	}
	w.proceed()
	if w.Happens(world.Sleeps, 3000) {
		for _, n := range w.nodes {
			n.machine.Sleep(0)
			n.machine.Clock.Now() // a step back between two readings hides as much of a sleep between them
		}
		d := w.In(20 * 100)
		for _, n := range w.nodes {
			n.machine.Sleep(d)
			n.machine.Clock.Now()
		}
		w.Sleep(d)
	}
	time.Sleep(world.Tick/4 + time.Duration(r.Int64N(int64(world.Tick*3/2))))
	w.settle()
}

// settle lets goroutines go on until all wait, and judges what they have been answered.
func (w *inhabited) settle() {
	synctest.Wait()
	w.mu.Lock()
	asked, answers := w.asked, w.answers
	w.asked, w.answers = nil, nil
	w.mu.Unlock()
	slices.SortFunc(asked, func(a, b *call) int { return strings.Compare(a.String(), b.String()) })
	for _, c := range asked {
		w.schedule(c)
	}
	slices.SortFunc(answers, func(a, b *ask) int { return a.number - b.number })
	for _, a := range answers {
		w.judge(a)
	}
}

// settler lets goroutines see each heartbeat by itself.
type settler struct {
	world *inhabited
	node  *inhabitant
}

// Beat implements changefeed.Listener.
func (s settler) Beat(b changefeed.Beat) {
	if s.world.Traces() {
		proves := "nothing"
		if !b.Moment.IsZero() {
			proves = fmt.Sprint("what was visible ", time.Since(b.Moment), " ago")
		}
		s.world.Tracef("node %d reads heartbeat %s: %d changes settled, %d not; it proves %s", s.node.number, b.At, len(b.Settled), len(b.Unsettled), proves)
	}
	s.world.settle()
}

// Reset implements changefeed.Listener.
func (s settler) Reset(epoch string, cause changefeed.ResetCause) {
	s.world.Tracef("node %d resets, to epoch %q: %s", s.node.number, epoch, cause)
	s.world.settle()
}

// schedule decides when a statement runs and when its answer arrives.
func (w *inhabited) schedule(c *call) {
	c.began = w.Replayed
	c.readAt = w.Now().Add(w.In(4))
	c.endAt = c.readAt.Add(w.In(8))
	if w.Happens(world.Slow, 8) {
		c.endAt = c.endAt.Add(w.In(80))
	}
	if w.Happens(world.Cuts, 20) {
		c.err = page.ErrUnavailable
	}
	w.calls = append(w.calls, c)
	w.Tracef("%s asks", c)
}

// proceed runs and answers statements whose time has come.
func (w *inhabited) proceed() {
	for _, c := range slices.Clone(w.calls) {
		if !c.ran && !w.Now().Before(c.readAt) {
			c.ran = true
			w.execute(c)
		}
		if c.ran && !w.Now().Before(c.endAt) {
			w.calls = slices.DeleteFunc(w.calls, func(o *call) bool { return o == c })
			close(c.answered)
			w.settle()
		}
	}
}

// execute runs a statement.
func (w *inhabited) execute(c *call) {
	limit := c.q.Limit * (1 + w.Rand().IntN(2))
	switch {
	case c.err != nil:
		return
	case c.standby && c.primary.Timeline != w.TimelineName(), !c.standby && c.run != "" && c.run != w.Run:
		c.err = page.ErrWrongServer
		return
	case c.standby:
		c.read = w.ReadStandby(&c.q, limit, c.began)
	default:
		c.read = w.Read(&c.q, limit)
	}
	c.read.Began = time.Now()
	w.Tracef("%s runs: %d rows, end %t, at %v", c, len(c.read.Rows), c.read.End, c.read.At)
	start := c.node.replica.Begin() // as it is now: not later than the answer
	stored := &found{q: c.q, reading: reading{Read: c.read, epoch: start.Epoch}, at: w.Now()}
	stored.At.Began = start.At.Began
	if c.standby {
		stored.at = stored.at.Add(-c.node.ProofAge())
	}
	if !c.standby || c.read.At.LSN >= c.primary.LSN {
		w.recent = append(w.recent[max(0, len(w.recent)-7):], stored)
	}
}

// request sends one.
func (w *inhabited) request(n *inhabitant) {
	r := w.Rand()
	a := &ask{number: w.counts["requests"], node: n, arrived: w.Now(), stepped: n.stepped, q: w.Queries[r.IntN(len(w.Queries))]}
	a.q.Limit = 1 + r.IntN(4)
	w.counts["requests"]++
	switch k := r.IntN(24); {
	case k < 3:
		a.kind = noCache
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
	w.running.Go(func() {
		a.result, a.err = a.send()
		a.ended = w.Now()
		w.mu.Lock()
		w.answers = append(w.answers, a)
		w.mu.Unlock()
	})
	w.settle()
}

// send is what a server does with a request.
func (a *ask) send() (r Result, err error) {
	n, ok := a.node, false
	queried := func() {}
	switch a.kind {
	case noCache:
		r, ok = n.Proven(&a.q)
		if !ok {
			r, err = n.Bypass(&a.q, queried)
		}
	case onlyIfCached:
		r, err = n.Stored(&a.q)
	default:
		if n.lives.Err() != nil {
			return r, errClosed
		}
		r, ok = n.Hit(&a.q, time.Now())
		if !ok {
			r, err = n.Forward(&a.q, queried)
		}
	}
	return r, err
}

// goOn lets a walk ask for its next page.
func (w *inhabited) goOn(a *ask) {
	r := w.Rand()
	for _, of := range w.walks {
		if !of.waits {
			a.walk = of
		}
	}
	if a.walk == nil && len(w.walks) < 4 {
		a.walk = &walk{q: a.q, seen: map[string]int{}}
		w.walks = append(w.walks, a.walk)
	}
	if a.walk != nil {
		a.walk.q.Limit = 1 + r.IntN(4)
		a.q, a.walk.waits = a.walk.q, true
	}
}

// copy gives a node a page that Redis has: what another statement read, or what another node shows.
func (w *inhabited) copy(n *inhabitant) {
	r := w.Rand()
	of := (*found)(nil)
	if other := w.nodes[r.IntN(len(w.nodes))]; r.IntN(2) == 0 {
		of = w.shownBy(other)
	} else if len(w.recent) > 0 {
		of = w.recent[r.IntN(len(w.recent))]
	}
	if of == nil {
		return
	}
	now := n.clock.Now()
	p := of.reading
	p.readAt = now - w.Now().Sub(of.at)
	l := newLookup(n.Cache, &of.q, nil)
	e := l.merged(n.replica.Begin(), &p, now)
	w.Tracef("node %d gets a copy of %d rows at %v", n.number, len(p.Rows), p.At)
	if n.judge(e, now) == fresh {
		n.memory.put(e, n.remaining(e))
	}
}

// shownBy returns a page as a node's replica has it: see Cache.storeState.
func (w *inhabited) shownBy(n *inhabitant) *found {
	of := &found{q: w.Queries[w.Rand().IntN(len(w.Queries))], at: w.Now().Add(-n.ProofAge())}
	of.q.Limit = 1 + w.Rand().IntN(4)
	of.epoch = n.Cache.followed.known.Load().epoch
	key := listOf(&of.q)
	of.At = n.replica.Begin().At
	cut, rows, whole := n.replica.Read(nil, &key, of.q.After, of.q.Limit+1, page.MaxBytes)
	if !whole && len(rows) <= of.q.Limit || n.Mode() != ModeFollowed {
		return nil
	}
	of.End = whole && !cut.More
	for _, row := range rows {
		of.Rows = append(of.Rows, *row)
	}
	return of
}

// verify has a node compare a page that it holds: see Cache.Verify.
func (w *inhabited) verify(n *inhabitant) {
	k, after, ok := n.replica.Pick()
	if n.Mode() != ModeFollowed || !ok {
		return
	}
	f := &replica.Fill{Key: k, After: after, Start: n.replica.Begin(), Verifies: true}
	f.Read = w.Read(&page.Query{List: k.Table.List, Tenant: k.Table.Tenant, Order: k.Order, Match: k.Match, Search: k.Search, After: after}, page.MaxLimit)
	f.At.Began = f.Start.At.Began
	w.counts["verifications"]++
	n.replica.Merge(f)
}

// statements are the database as a node reaches it.
type statements struct {
	world *inhabited
	node  *inhabitant
}

var errNotVerified = errors.New("the world verifies nothing")

func (s *statements) Fetch(ctx context.Context, q page.Query, run string) (page.Read, error) {
	return s.await(ctx, &call{q: q, run: run})
}

func (s *statements) FetchFromStandby(ctx context.Context, q page.Query, primary changefeed.Proof) (page.Read, error) {
	return s.await(ctx, &call{q: q, primary: primary, standby: true})
}

func (s *statements) FetchRows(context.Context, page.Query, []string, string) (page.Read, error) {
	return page.Read{}, errNotVerified
}

func (s *statements) Verify(context.Context, page.Query, string) (page.Read, error) {
	return page.Read{}, errNotVerified
}

func (s *statements) HasStandbys() bool { return s.world.Standby }

func (s *statements) await(ctx context.Context, c *call) (page.Read, error) {
	c.node, c.answered = s.node, make(chan struct{})
	s.world.mu.Lock()
	s.world.asked = append(s.world.asked, c)
	s.world.mu.Unlock()
	select {
	case <-c.answered:
		return c.read, c.err
	case <-ctx.Done():
		return page.Read{Began: time.Now()}, fmt.Errorf("%w: %w", page.ErrUnavailable, ctx.Err())
	}
}
