package cache_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
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
