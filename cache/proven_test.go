package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

// A page that rows have is answered by the first proof that is younger than the request, whatever it cost the others who
// wait: no query, and the follower is asked for heartbeats once for each that comes.
func TestProven(t *testing.T) {
	const waiting = 1000
	onNode(t, func(n *node) {
		var hurried atomic.Int64
		n.SetHurry(func(context.Context) { hurried.Add(1) })
		n.asked(n.reads(shows("a")), "a", cache.Origin)
		before := time.Now()
		boottimetest.Pass(1)
		answers := make(chan string, waiting)
		for range waiting {
			go func() {
				r, ok := n.Proven(n.q)
				if !ok || r.Source != cache.Memory || r.Bypassed || r.Err != nil {
					t.Errorf("%+v, %t", r, ok)
					answers <- ""
					return
				}
				answers <- text(r.Entry)
			}()
		}
		synctest.Wait()
		n.change(n.q, rowAt(0, "b"))
		n.beatOf(before)
		synctest.Wait()
		if len(answers) != 0 {
			t.Errorf("%d of a proof from before they came", len(answers))
		}
		n.change(n.q, rowAt(0, "c"))
		n.beat()
		for range waiting {
			if got := <-answers; got != "c" {
				t.Fatalf("%q", got)
			}
		}
		checkFills(t, n.opened, 1, 0)
		if got := hurried.Load(); got != 2 || n.Stats().Proven != waiting {
			t.Errorf("heartbeats were asked for %d times, %d pages were proven", got, n.Stats().Proven)
		}
	})
}

// Nothing is waited for where no proof would help, and where one would, for a quarter of the bound.
func TestProvenWaitsOnlyForAProof(t *testing.T) {
	for name, test := range map[string]struct {
		lose func(n *node)
		want time.Duration
	}{
		"no proof comes":          {func(*node) {}, sharing},
		"a page that is not held": {func(n *node) { n.q = queryOf("other") }, 0},
		"rows that were given up": {func(n *node) { n.change(n.q); n.beat(); boottimetest.Pass(1) }, 0},
		"a page that no rows have": {func(n *node) {
			n.q = queryOf("other")
			fill := n.reads(shows("b"))
			n.asked(origin{Primary: func(ctx context.Context, run string) (page.Read, error) {
				n.change(n.q) // any row
				n.beat()
				boottimetest.Pass(1)
				return fill.Primary(ctx, run)
			}}, "b", cache.Origin)
			boottimetest.Pass(1)
		}, 0},
		"the last proof is too old":    {func(*node) { boottimetest.Pass(bound) }, 0},
		"changes may have been missed": {func(n *node) { n.reset("another") }, 0},
		"changes cannot be followed":   {func(n *node) { n.SetTTLMode(true) }, 0},
		"only evicted as a page":       {func(n *node) { n.DropPages() }, sharing},
	} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *node) {
				n.asked(n.reads(shows("a")), "a", cache.Origin)
				boottimetest.Pass(1)
				test.lose(n)
				began := time.Now()
				if r, ok := n.Proven(n.q); ok || time.Since(began) != test.want {
					t.Errorf("%q after %s", text(r.Entry), time.Since(began))
				}
			})
		})
	}
}

func TestACacheThatClosesEndsWaitsForProofs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openFor(t, cache.Options{TTL: time.Hour, Bound: time.Hour})
		f, q := follow(c), queryOf("q")
		forward(t, c, q, f.reads(shows("a")))
		boottimetest.Pass(1)
		ended := make(chan bool, 2)
		go func() {
			_, ok := c.Proven(q)
			ended <- ok
		}()
		go func() {
			_, err := c.Track(q, page.Tracking{}, cache.Directives{NoCache: true}, func() {})
			ended <- err == nil
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || <-ended || <-ended || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// Those who come while a statement runs share the next one.
func TestBypassesShareAStatementThatBeginsAfterThem(t *testing.T) {
	onNode(t, func(n *node) {
		var statements, present atomic.Int64
		slow := origin{Primary: func(ctx context.Context, run string) (page.Read, error) {
			statements.Add(1)
			read, err := n.reads(shows(strconv.FormatInt(present.Load(), 10))).Primary(ctx, run)
			boottimetest.Pass(time.Second)
			return read, err
		}}
		answers := make(chan [2]int)
		for i := range 10 {
			present.Store(int64(i))
			go func() {
				r, err := bypass(n.opened, n.q, slow)
				if err != nil || !r.Bypassed || r.Source != cache.Origin {
					t.Errorf("%+v, %v", r, err)
				}
				got, _ := strconv.Atoi(text(r.Entry))
				answers <- [2]int{i, got}
			}()
			boottimetest.Pass(10 * time.Millisecond)
		}
		for range 10 {
			if is := <-answers; is[1] < is[0] {
				t.Errorf("who came at %d got %d", is[0], is[1])
			}
		}
		if n := statements.Load(); n != 2 {
			t.Errorf("%d statements", n)
		}
	})
}

// A register, writers, statements on the primary and on a standby that lags, heartbeats that come late with proofs that are
// older, and lists that are given up: a request with no-cache never gets an earlier value than it could have known.
func TestNoCacheModel(t *testing.T) {
	var proven, bypassed, shared atomic.Int64
	for seed := range uint64(40) {
		onNode(t, func(n *node) {
			m := &register{node: n, r: rand.New(rand.NewPCG(seed, 49))}
			n.origins.set(n.q, origin{Primary: m.readPrimary, Standby: m.readStandby})
			for step := 0; step < 600 && !t.Failed(); step++ {
				boottimetest.Pass(m.step())
			}
			for range 2 * sharing / time.Millisecond { // no more heartbeats: all that run end
				boottimetest.Pass(4 * time.Millisecond)
			}
			synctest.Wait()
			if running := m.running.Load(); running != 0 {
				t.Errorf("seed %d: %d requests still wait", seed, running)
			}
			proven.Add(m.proven.Load())
			bypassed.Add(m.bypassed.Load())
			shared.Add(m.shared.Load())
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d from rows, %d from the primary, of which %d shared", proven.Load(), bypassed.Load(), shared.Load())
	if proven.Load() < 500 || bypassed.Load() < 500 || shared.Load() < 100 {
		t.Error("too few")
	}
}

// register is a list of one row, whose text is the number of the transaction that wrote it last. All times are virtual.
type register struct {
	*node
	mu   sync.Mutex // guards the random numbers and what the feed has
	r    *rand.Rand
	late []changefeed.Beat // under way to the node

	running, proven, bypassed, shared atomic.Int64
}

func (m *register) upTo(d time.Duration) time.Duration {
	return time.Duration(m.r.Int64N(int64(d))) + 1
}

// pass lets a random time pass.
func (m *register) pass(most time.Duration) {
	m.mu.Lock()
	d := m.upTo(most)
	m.mu.Unlock()
	boottimetest.Pass(d)
}

func (m *register) row() list.Row { return rowAt(0, strconv.FormatUint(m.xid, 10)) }

// step is one event. It returns the time until the next.
func (m *register) step() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch k := m.r.IntN(100); {
	case k < 25:
		m.write(m.r.IntN(25) == 0)
	case k < 35: // the snapshot sees all that was visible at the moment; the heartbeat is on its way
		m.feed.at.N++
		b := changefeed.Beat{Proof: m.proof(time.Now().Add(-m.upTo(40 * time.Millisecond))), Snapshot: m.snapshot(), Followed: []*list.List{m.q.List},
			Settled: m.settled}
		m.settled = nil
		m.late = append(m.late, b)
	case k < 55 && len(m.late) > 0:
		m.Beat(m.late[0])
		m.late = m.late[1:]
	case k < 57:
		m.DropPages()
	case k < 65:
		m.request(func() (cache.Result, error) { return m.Forward(m.q, func() {}) }, 0)
	default:
		m.request(m.noCache, m.xid)
	}
	return m.upTo(20 * time.Millisecond)
}

// write is a transaction, which the log may name no rows of.
func (m *register) write(unnamed bool) {
	if unnamed {
		m.change(m.q)
		return
	}
	m.xid++
	row := m.row()
	m.xid--
	m.change(m.q, row)
}

func (m *register) request(ask func() (cache.Result, error), least uint64) {
	m.running.Add(1)
	go func() {
		defer m.running.Add(-1)
		r, err := ask()
		if err != nil {
			m.Error(err)
			return
		}
		if got, _ := strconv.ParseUint(text(r.Entry), 10, 64); got < least {
			m.Errorf("%d, where %d was visible: %+v", got, least, r)
		}
	}()
}

// noCache is what a request with Cache-Control: no-cache does.
func (m *register) noCache() (cache.Result, error) {
	r, ok := m.Proven(m.q)
	if ok {
		m.proven.Add(1)
		return r, nil
	}
	r, err := m.Bypass(m.q, func() {})
	m.bypassed.Add(1)
	if r.Collapsed {
		m.shared.Add(1)
	}
	return r, err
}

func (m *register) readPrimary(context.Context, string) (page.Read, error) {
	m.pass(30 * time.Millisecond)
	m.mu.Lock()
	read := page.Read{Rows: []list.Row{m.row()}, End: true, At: changefeed.ReadPoint{StartedAt: m.run, Snapshot: m.snapshot()}}
	m.mu.Unlock()
	m.pass(100 * time.Millisecond)
	return read, nil
}

// readStandby: it has replayed all up to some time ago.
func (m *register) readStandby(context.Context, changefeed.Proof) (page.Read, error) {
	m.mu.Lock()
	lag := min(m.r.Uint64N(4), m.xid-99)
	now := m.xid
	m.xid -= lag
	read := page.Read{Rows: []list.Row{m.row()}, End: true, At: changefeed.ReadPoint{Timeline: ofServer, LSN: m.xid, Through: m.xid}}
	m.xid = now
	m.mu.Unlock()
	m.pass(100 * time.Millisecond)
	return read, nil
}
