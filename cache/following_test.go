package cache

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache/replica"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/lists"
)

// The tests of this file have one node that follows changes, in virtual time.

const (
	bound   = 4 * time.Second
	sharing = bound / shareFactor
)

// node is a node and the log that it follows. q is the key of its list.
type node struct {
	*testing.T
	*Cache
	*feed
	q []byte
}

func onNode(t *testing.T, test func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Options{TTL: ttl, MaxStale: maxStale, Bound: bound})
		test(&node{t, c, follow(c), keyOf("q")})
	})
}

// hit is what Hit returns; empty = nothing.
func (n *node) hit() string {
	r, ok := n.Hit(n.q, time.Now())
	if !ok {
		return ""
	}
	if r.Source != Memory || r.Err != nil || r.ByTTL || n.clock.Now()-r.Age < r.Entry.Proof {
		n.Errorf("%+v", r)
	}
	return r.Entry.text()
}

func (n *node) isHit(want string) {
	n.Helper()
	if got := n.hit(); got != want {
		n.Fatalf("a hit of %q, want %q", got, want)
	}
}

// asked is what Forward returns, and from where.
func (n *node) asked(fill Fill, body string, source Source) Result {
	n.Helper()
	r, err := ask(n.Cache, n.q, fill)
	if err != nil || r.Entry.text() != body || r.Source != source || r.Err != nil {
		n.Fatalf("%+v, %v; want %q from %s", r, err, body, source)
	}
	return r
}

func TestChangesAreAppliedWithoutAQuery(t *testing.T) {
	gone := rowAt(1, "")
	gone.Flags = lists.Gone
	unknown := rowAt(1, "")
	for name, test := range map[string]struct {
		changed []lists.Row
		want    string // empty = it must be read
		same    bool   // the entry
	}{
		"a row of the page":     {[]lists.Row{rowAt(1, "B")}, "a B c", false},
		"two rows":              {[]lists.Row{rowAt(0, "A"), rowAt(2, "C")}, "A b C", false},
		"a row before all":      {[]lists.Row{rowAt(-1, "z")}, "z a b", false},
		"a row is gone":         {[]lists.Row{gone}, "a c d", false},
		"a row behind the page": {[]lists.Row{rowAt(3, "D")}, "a b c", true},
		"a row of no range":     {[]lists.Row{rowAt(9, "J")}, "a b c", true},
		"a row as it was":       {[]lists.Row{rowAt(1, "b")}, "a b c", true},
		"a text is not known":   {[]lists.Row{unknown}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *node) {
				before := n.asked(n.reads(FillResult{Rows: rowsOf("a", "b", "c", "d", "e")}), "a b c", Origin)
				n.change(n.q, test.changed...)
				n.isHit("a b c") // the change is not applied yet
				n.beat()
				n.isHit(test.want)
				if r, ok := n.Hit(n.q, time.Now()); ok && (r.Entry == before.Entry) != test.same {
					t.Errorf("the same entry: %t", !test.same)
				}
				checkFills(t, n.Cache, 1, 0)
			})
		})
	}
	t.Run("another list", func(t *testing.T) {
		onNode(t, func(n *node) {
			n.asked(n.reads(shows("a")), "a", Origin)
			n.change(keyOf("other"), rowAt(0, "A"))
			n.beat()
			n.isHit("a")
		})
	})
	t.Run("any row", func(t *testing.T) {
		onNode(t, func(n *node) {
			n.asked(n.reads(shows("a")), "a", Origin)
			n.change(n.q)
			n.settled[0].Rows = nil
			n.beat()
			n.isHit("")
			n.asked(n.reads(shows("A")), "A", Origin)
		})
	})
}

// A page that is made anew with an equal body shares its compressed form.
func TestACompressedFormIsShared(t *testing.T) {
	onNode(t, func(n *node) {
		before := n.asked(n.reads(shows(strings.Repeat("a", 2*minCompressed))), strings.Repeat("a", 2*minCompressed), Origin).Entry
		before.Deflate()
		row := rowAt(0, before.text())
		row.Flags = lists.Goods
		n.change(n.q, row)
		n.beat()
		r, ok := n.Hit(n.q, time.Now())
		if !ok || r.Entry == before {
			t.Fatalf("%t, the same entry", ok)
		}
		if _, is := r.Entry.compressed(); !is {
			t.Error("it is not compressed")
		}
	})
}

// A page that no request has brought up to date goes when the replica has let many rows go,
// because it may be the last to hold them.
func TestPagesDoNotHoldRowsForLong(t *testing.T) {
	onNode(t, func(n *node) {
		other := keyOf("other")
		forward(t, n.Cache, other, n.reads(shows("b")))
		n.asked(n.reads(shows("a")), "a", Origin)
		budget := int(rowsBudget(n.memory.budget)) / releasedShare
		for _, step := range []struct {
			text string
			kept bool
		}{{"small", true}, {strings.Repeat("x", budget), true}, {"small", false}} {
			n.change(n.q, rowAt(0, step.text))
			n.beat()
			if kept := n.memory.get(n.q) != nil; kept != step.kept || n.memory.get(other) == nil {
				t.Errorf("%.10s: kept %t, the other: %t", step.text, kept, n.memory.get(other) != nil)
			}
		}
		if n.isHit(""); n.memory.evicted.Load() != 1 {
			t.Errorf("%d evicted", n.memory.evicted.Load())
		}
		r, err := n.Stored(pageOf(n.q))
		want{body: "small"}.check(t, r, err)
	})
}

func TestRowsThatMemoryHasAreNotMissed(t *testing.T) {
	onNode(t, func(n *node) {
		n.asked(n.reads(shows("a")), "a", Origin)
		n.memory.ristretto.Clear() // the rows stay
		if r := n.asked(n.reads(shows("b")), "a", Memory); r.Missed != "" {
			t.Error(r.Missed)
		}
	})
}

func TestWhyMemoryHasNoPage(t *testing.T) {
	for want, lose := range map[string]func(n *node){
		"not-held, never read":   func(n *node) { n.memory.ristretto.Clear(); n.replica.Reset(); n.beat() },
		"unproven, the log ends": func(*node) { boottimetest.Pass(bound) },
		"stale, by age":          func(n *node) { n.SetTTLMode(true); boottimetest.Pass(ttl) },
		"stale, changes missed":  func(n *node) { n.reset("epoch"); n.beat() },
		"stale, a row unknown":   func(n *node) { n.change(n.q, rowAt(0, "")); n.beat() },
		"stale, any row":         func(n *node) { n.change(n.q); n.settled[0].Rows = nil; n.beat() },
		"stale, rows evicted": func(n *node) {
			large := n.reads(shows(slices.Repeat([]string{strings.Repeat("x", int(rowsBudget(n.memory.budget))/300)}, 200)...))
			for _, list := range []string{"1", "2", "3"} { // each range has a second chance
				forward(n, n.Cache, keyOf(list), large)
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			onNode(t, func(n *node) {
				n.asked(n.reads(shows("a")), "a", Origin)
				boottimetest.Pass(sharing)
				lose(n)
				if r := n.asked(n.reads(shows("b")), "b", Origin); !strings.HasPrefix(want, r.Missed+",") {
					t.Errorf("%q", r.Missed)
				}
			})
		})
	}
}

// What memory has dropped is cut again out of the replica's rows, also pages behind the one
// that was asked for.
func TestPagesAreCutOutOfRows(t *testing.T) {
	onNode(t, func(n *node) {
		r := n.asked(n.reads(shows("a", "b", "c", "d", "e")), "a b c", Origin)
		if r.Entry.Next != "behind c" {
			t.Errorf("next %q", r.Entry.Next)
		}
		n.memory.ristretto.Clear()
		n.asked(fails(errPanic), "a b c", Memory)
		behind := Fill{View: pageOf(n.q).Behind(&rowsOf("a", "b", "c")[2])}
		stored := func(_ []byte, f Fill) (Result, error) { return n.Stored(f.View) }
		for _, find := range []func([]byte, Fill) (Result, error){stored, n.Forward} {
			r, err := find(behind.View.Key(), behind)
			want{body: "d e"}.check(t, r, err)
			if r.Entry.Next != "" {
				t.Errorf("next %q", r.Entry.Next)
			}
			n.memory.ristretto.Clear()
		}
		last := Fill{View: behind.View.Behind(&rowsOf("a", "b", "c", "d", "e")[4])}
		r, err := n.Stored(last.View)
		want{body: ""}.check(t, r, err)
		other := Fill{View: pageOf(keyOf("other"))}
		if r, err := n.Stored(other.View); !errors.Is(err, ErrNotStored) {
			t.Errorf("%+v, %v", r, err)
		}
		checkFills(t, n.Cache, 1, 0)
	})
}

func TestALongPageEndsBeforeItsLimit(t *testing.T) {
	onNode(t, func(n *node) {
		long := strings.Repeat("x", lists.MaxBytes/2)
		r := n.asked(n.reads(shows(long, long, long)), long+" "+long, Origin)
		for range 2 {
			if r.Entry.Next != "behind "+long {
				t.Error("it has no next page")
			}
			n.memory.ristretto.Clear()
			r = n.asked(n.reads(shows(long, long, long)), long+" "+long, r.Source) // cut out of the rows, or read again
		}
	})
}

// isAhead answers by a statement that sees more than the last heartbeat.
func (n *node) isAhead() {
	n.Helper()
	n.change(n.q, rowAt(0, "A"))
	n.asked(n.reads(FillResult{Rows: rowsOf("A", "b", "c", "d", "e", "f", "g")}), "A b c", Origin)
}

// asksBehind asks for the second page. A statement fails.
func (n *node) asksBehind() (Result, error) {
	v := pageOf(n.q).Behind(&rowsOf("a", "b", "c")[2])
	return n.Forward(v.Key(), Fill{View: v, Primary: fails(errOrigin).Primary})
}

// A statement may see more than the last heartbeat. Its answer is shared until a heartbeat
// sees as much, while the last one is proven.
func TestAnAnswerAheadOfTheLog(t *testing.T) {
	t.Run("is shared", func(t *testing.T) {
		onNode(t, func(n *node) {
			n.isAhead()
			boottimetest.Pass(bound - 1)
			n.isHit("A b c")
			r, err := n.asksBehind()
			want{body: "d e f"}.check(t, r, err)
			if r.Age != bound-1 {
				t.Errorf("%v old", r.Age)
			}
			boottimetest.Pass(1)
			n.isHit("")
			n.asked(n.reads(shows("A", "b")), "A b", Origin)
			checkFills(t, n.Cache, 2, 0)
		})
	})
	t.Run("has only a stale further page once it is old", func(t *testing.T) {
		onNode(t, func(n *node) {
			n.isAhead()
			boottimetest.Pass(bound)
			r, err := n.asksBehind()
			want{body: "d e f", hadStale: true, err: errOrigin}.check(t, r, err)
		})
	})
	t.Run("has no page that it does not have whole", func(t *testing.T) {
		onNode(t, func(n *node) {
			n.isAhead()
			for _, last := range []int{3, 5} { // behind d there is a whole page, and it is not known whether more follows
				v := pageOf(n.q).Behind(&rowsOf("a", "b", "c", "d", "e", "f")[last])
				if r, err := n.Forward(v.Key(), Fill{View: v, Primary: fails(errOrigin).Primary}); !errors.Is(err, errOrigin) {
					t.Errorf("behind row %d: %+v, %v", last, r, err)
				}
			}
		})
	})
	t.Run("is merged by a heartbeat", func(t *testing.T) {
		onNode(t, func(n *node) {
			n.isAhead()
			n.beat()
			boottimetest.Pass(sharing)
			n.isHit("A b c")
			n.change(n.q, rowAt(1, "B"))
			n.beat()
			n.isHit("A B c")
			r, err := n.asksBehind()
			want{body: "d e f"}.check(t, r, err)
			checkFills(t, n.Cache, 1, 0)
		})
	})
	t.Run("is forgotten by a reset", func(t *testing.T) {
		onNode(t, func(n *node) {
			n.isAhead()
			n.reset("another")
			n.beat()
			boottimetest.Pass(sharing)
			n.isHit("")
			if got := n.Stats().Replica.Fills[replica.Resynced]; got != 1 {
				t.Errorf("%d resynced", got)
			}
		})
	})
}

func TestWhileNothingIsProven(t *testing.T) {
	lost := map[string]func(n *node){
		"the last proof is too old": func(*node) { boottimetest.Pass(bound) },
		"changes may be missed":     func(n *node) { n.reset("epoch") },
	}
	for name, lose := range lost {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *node) {
				n.asked(n.reads(shows("a")), "a", Origin)
				boottimetest.Pass(sharing)
				n.isHit("a")
				lose(n)
				if run := n.PrimaryStart(); n.Mode() != ModeUntrusted || run != "" {
					t.Errorf("mode %s, run %q", n.Mode(), run)
				}
				n.isHit("")
				if r, err := ask(n.Cache, n.q, fails(errOrigin)); err != nil || !errors.Is(r.Err, errOrigin) || r.Age < sharing {
					t.Errorf("%+v, %v", r, err)
				}
				boottimetest.Pass(fillPause)
				n.run = "of another primary" // the node's connections may have been renewed before the log
				n.asked(n.reads(shows("b")), "b", Origin)
				boottimetest.Pass(sharing - 1)
				n.isHit("b")
				boottimetest.Pass(1)
				n.isHit("")
				n.reset("new")
				n.beat()
				n.asked(n.reads(shows("c")), "c", Origin)
				boottimetest.Pass(bound - 1)
				n.isHit("c")
			})
		})
	}
}

// A bypass reads what is fresh in memory again, but shares what was read a moment ago.
func TestBypass(t *testing.T) {
	onNode(t, func(n *node) {
		n.asked(n.reads(shows("a")), "a", Origin)
		n.change(n.q, rowAt(0, "b"))
		fill := n.reads(shows("b")).of(n.q)
		for _, step := range []struct {
			pass time.Duration
			want want
		}{{sharing - 1, want{body: "a"}}, {1, want{body: "b", source: Origin}}, {sharing - 1, want{body: "b"}}, {1, want{body: "b", source: Origin}}} {
			boottimetest.Pass(step.pass)
			r, err := n.Bypass(n.q, fill)
			step.want.check(t, r, err)
		}
	})
}

// What a bypass reads is as new as its statement, however old the last proof is.
func TestABypassReadsOnce(t *testing.T) {
	onNode(t, func(n *node) {
		boottimetest.Pass(2 * sharing)
		fill, reads := n.reads(shows("a")).of(n.q), 0
		read := fill.Primary
		fill.Primary = func(ctx context.Context, run string) (FillResult, error) {
			if reads++; reads > 1 {
				return FillResult{}, errPanic
			}
			return read(ctx, run)
		}
		r, err := n.Bypass(n.q, fill)
		want{body: "a", source: Origin}.check(t, r, err)
		if r.Age != 0 || n.Stats().Replica.Fills[replica.Merged] != 1 {
			t.Errorf("%v old, %+v", r.Age, n.Stats().Replica)
		}
	})
}

// A hit waits for no lock that another request, or the log, may hold.
func TestAHitTakesNoLock(t *testing.T) {
	onNode(t, func(n *node) {
		n.asked(n.reads(shows("a")), "a", Origin)
		n.mu.Lock()
		n.memory.putMutex(n.q).Lock()
		n.isHit("a")
		n.memory.putMutex(n.q).Unlock()
		n.mu.Unlock()
	})
}

// A node without changes to follow judges by age, and has the whole memory for pages.
func TestTTLMode(t *testing.T) {
	onNode(t, func(n *node) {
		share := n.memory.ristretto.MaxCost()
		n.asked(n.reads(shows("a")), "a", Origin)
		n.SetTTLMode(true)
		if got := n.memory.ristretto.MaxCost(); n.Mode() != ModeTTL || got != n.memory.budget || share != got-rowsBudget(got) {
			t.Errorf("mode %s, %d bytes for pages, before %d", n.Mode(), got, share)
		}
		if kept := n.replica.Stats().Rows; kept != 0 {
			t.Errorf("the replica keeps %d rows", kept)
		}
		boottimetest.Pass(ttl - 1)
		if r, ok := n.Hit(n.q, time.Now()); !ok || !r.ByTTL {
			t.Errorf("%t, %+v", ok, r)
		}
		boottimetest.Pass(1)
		n.isHit("")
		n.SetTTLMode(false)
		n.beat()
		n.asked(n.reads(shows("a")), "a", Origin)
		n.isHit("a")
	})
}
