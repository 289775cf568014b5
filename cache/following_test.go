package cache_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/internal/boottime"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// The tests of this file have one node that follows changes, in virtual time.

const (
	bound   = 4 * time.Second
	sharing = bound / 4

	rowsBudget = 8 << 20 * 3 / 4 * 4 / 5 // of the memory that open gives
)

// node is a node and the log that it follows. q is the key of its list.
type node struct {
	*testing.T
	*opened
	*feed
	clock    *boottime.Clock
	machine  *boottimetest.Machine
	followed *fleet.Followed
	q        *page.Query
}

func onNode(t *testing.T, test func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, followed := boottimetest.NewMachine(), followedAt(ofShop, 1)
		c := open(t, cache.Options{TTL: ttl, MaxStale: maxStale, Bound: bound, Clock: m.Clock, Followed: followed})
		test(&node{t, c, follow(c), m.Clock, m, followed, queryOf("q")})
	})
}

// hit is what Hit returns; empty = nothing.
func (n *node) hit() string {
	r, ok := n.Hit(n.q, time.Now())
	if !ok {
		return ""
	}
	if r.Source != cache.Memory || r.Err != nil || r.ByTTL || n.clock.Now()-r.Age < r.Entry.Proof {
		n.Errorf("%+v", r)
	}
	return text(r.Entry)
}

func (n *node) isHit(want string) {
	n.Helper()
	if got := n.hit(); got != want {
		n.Fatalf("a hit of %q, want %q", got, want)
	}
}

// asked is what Forward returns, and from where.
func (n *node) asked(fill origin, body string, source cache.Source) cache.Result {
	n.Helper()
	r, err := ask(n.opened, n.q, fill)
	if err != nil || text(r.Entry) != body || r.Source != source || r.Err != nil {
		n.Fatalf("%+v, %v; want %q from %s", r, err, body, source)
	}
	return r
}

func TestChangesAreAppliedWithoutAQuery(t *testing.T) {
	gone := list.GoneRow(listtest.Key(listtest.ID(11)))
	unknown := rowAt(1, "")
	for name, test := range map[string]struct {
		changed []list.Row
		want    string // empty = it must be read
		same    bool   // the entry
	}{
		"a row of the page":     {[]list.Row{rowAt(1, "B")}, "a B c", false},
		"two rows":              {[]list.Row{rowAt(0, "A"), rowAt(2, "C")}, "A b C", false},
		"a row before all":      {[]list.Row{rowAt(-1, "z")}, "z a b", false},
		"a row is gone":         {[]list.Row{gone}, "a c d", false},
		"a row behind the page": {[]list.Row{rowAt(3, "D")}, "a b c", true},
		"a row of no range":     {[]list.Row{rowAt(9, "J")}, "a b c", true},
		"a row as it was":       {[]list.Row{rowAt(1, "b")}, "a b c", true},
		"a text is not known":   {[]list.Row{unknown}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *node) {
				before := n.asked(n.reads(page.Read{Rows: rowsOf("a", "b", "c", "d", "e")}), "a b c", cache.Origin)
				n.change(n.q, test.changed...)
				n.isHit("a b c") // the change is not applied yet
				n.beat()
				n.isHit(test.want)
				if r, ok := n.Hit(n.q, time.Now()); ok && (r.Entry == before.Entry) != test.same {
					t.Errorf("the same entry: %t", !test.same)
				}
				checkFills(t, n.opened, 1, 0)
			})
		})
	}
}

// A page that is made anew with an equal body shares its compressed form.
func TestACompressedFormIsShared(t *testing.T) {
	onNode(t, func(n *node) {
		before := n.asked(n.reads(shows(strings.Repeat("a", 512))), strings.Repeat("a", 512), cache.Origin).Entry
		compressed := before.Deflate()
		row := rowAt(0, text(before))
		n.change(n.q, list.GoneRow(row.Key()))
		n.beat()
		n.change(n.q, row)
		n.beat()
		r, ok := n.Hit(n.q, time.Now())
		if !ok || r.Entry == before {
			t.Fatalf("%t, the same entry", ok)
		}
		if again := r.Entry.Deflate(); &again[0] != &compressed[0] {
			t.Error("it is compressed again")
		}
	})
}

// A page that no request has brought up to date goes when the replica has let many rows go,
// because it may be the last to hold them.
func TestPagesDoNotHoldRowsForLong(t *testing.T) {
	onNode(t, func(n *node) {
		other := queryOf("other")
		forward(t, n.opened, other, n.reads(shows("b")))
		n.asked(n.reads(shows("a")), "a", cache.Origin)
		const budget = rowsBudget / 16
		for _, step := range []struct {
			text    string
			evicted uint64 // not the other
		}{{"small", 0}, {strings.Repeat("x", budget), 0}, {"small", 1}} {
			n.change(n.q, rowAt(0, step.text))
			n.beat()
			if _, there := n.Hit(other, time.Now()); !there || n.Stats().Evicted != step.evicted {
				t.Errorf("%.10s: %d evicted; the other is kept: %t", step.text, n.Stats().Evicted, there)
			}
		}
		n.isHit("small") // cut anew
	})
}

func TestWhyMemoryHasNoPage(t *testing.T) {
	for want, lose := range map[string]func(n *node){
		"not-held, never read":   func(n *node) { n.q = queryOf("other") },
		"unproven, the log ends": func(*node) { boottimetest.Pass(bound) },
		"stale, by age":          func(n *node) { n.SetTTLMode(true); boottimetest.Pass(ttl) },
		"stale, changes missed":  func(n *node) { n.reset("epoch"); n.beat() },
		"stale, a row unknown":   func(n *node) { n.change(n.q, rowAt(0, "")); n.beat() },
		"stale, any row":         func(n *node) { n.change(n.q); n.beat() },
		"stale, rows evicted": func(n *node) {
			large := n.reads(shows(slices.Repeat([]string{strings.Repeat("x", rowsBudget/300)}, 200)...))
			for _, list := range []string{"1", "2", "3"} { // each range has a second chance
				forward(n, n.opened, queryOf(list), large)
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			onNode(t, func(n *node) {
				n.asked(n.reads(shows("a")), "a", cache.Origin)
				boottimetest.Pass(sharing)
				lose(n)
				if r := n.asked(n.reads(shows("b")), "b", cache.Origin); !strings.HasPrefix(want, r.Missed+",") {
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
		r := n.asked(n.reads(shows("a", "b", "c", "d", "e")), "a b c", cache.Origin)
		second := behind(n.q, &rowsOf("a", "b", "c")[2])
		if r.Entry.Next != string(second.AppendCursor(nil)) {
			t.Errorf("next %q", r.Entry.Next)
		}
		n.DropPages()
		if r := n.asked(fails(errOrigin), "a b c", cache.Memory); r.Missed != "" {
			t.Errorf("missed: %s", r.Missed)
		}
		for _, find := range []func() (cache.Result, error){
			func() (cache.Result, error) { return n.Stored(second) },
			func() (cache.Result, error) { return ask(n.opened, second, fails(errOrigin)) },
			func() (cache.Result, error) { // before a request pays for it
				r, ok := n.Hit(second, time.Now())
				if !ok {
					return r, cache.ErrNotStored
				}
				return r, nil
			},
		} {
			r, err := find()
			want{body: "d e"}.check(t, r, err)
			if r.Entry.Next != "" {
				t.Errorf("next %q", r.Entry.Next)
			}
			n.DropPages()
		}
		r, err := n.Stored(behind(second, &rowsOf("a", "b", "c", "d", "e")[4]))
		want{body: ""}.check(t, r, err)
		if r, err := n.Stored(queryOf("other")); !errors.Is(err, cache.ErrNotStored) {
			t.Errorf("%+v, %v", r, err)
		}
		checkFills(t, n.opened, 1, 0)
	})
}

func TestALongPageEndsBeforeItsLimit(t *testing.T) {
	onNode(t, func(n *node) {
		long := strings.Repeat("x", page.MaxBytes/2-1000)
		r := n.asked(n.reads(shows(long, long, long)), long+" "+long, cache.Origin)
		for range 2 {
			if r.Entry.Next == "" {
				t.Error("it has no next page")
			}
			n.DropPages()
			r = n.asked(n.reads(shows(long, long, long)), long+" "+long, r.Source) // cut out of the rows, or read again
		}
	})
}

// isAhead answers by a statement that sees more than the last heartbeat.
func (n *node) isAhead() {
	n.Helper()
	n.change(n.q, rowAt(0, "A"))
	n.asked(n.reads(page.Read{Rows: rowsOf("A", "b", "c", "d", "e", "f", "g")}), "A b c", cache.Origin)
}

// asksBehind asks for the second page. A statement fails.
func (n *node) asksBehind() (cache.Result, error) {
	return ask(n.opened, behind(n.q, &rowsOf("a", "b", "c")[2]), fails(errOrigin))
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
			n.asked(n.reads(shows("A", "b")), "A b", cache.Origin)
			checkFills(t, n.opened, 2, 0)
		})
	})
	t.Run("has no page that it does not have whole", func(t *testing.T) {
		onNode(t, func(n *node) {
			n.isAhead()
			for _, last := range []int{3, 5} { // behind d there is a whole page, and it is not known whether more follows
				if r, err := ask(n.opened, behind(n.q, &rowsOf("a", "b", "c", "d", "e", "f")[last]), fails(errOrigin)); !errors.Is(err, errOrigin) {
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
			checkFills(t, n.opened, 1, 0)
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
				n.asked(n.reads(shows("a")), "a", cache.Origin)
				boottimetest.Pass(sharing)
				n.isHit("a")
				lose(n)
				if run := n.PrimaryStart(); n.Mode() != cache.ModeUntrusted || run != "" {
					t.Errorf("mode %s, run %q", n.Mode(), run)
				}
				n.isHit("")
				if r, err := ask(n.opened, n.q, fails(errOrigin)); err != nil || !errors.Is(r.Err, errOrigin) || r.Age < sharing {
					t.Errorf("%+v, %v", r, err)
				}
				boottimetest.Pass(fillPause)
				n.run = "of another primary" // the node's connections may have been renewed before the log
				n.asked(n.reads(shows("b")), "b", cache.Origin)
				boottimetest.Pass(sharing - 1)
				n.isHit("b")
				boottimetest.Pass(1)
				n.isHit("")
				n.reset("new")
				n.beat()
				n.asked(n.reads(shows("c")), "c", cache.Origin)
				boottimetest.Pass(bound - 1)
				n.isHit("c")
			})
		})
	}
}

// What a bypass reads is as new as its statement, however old the last proof is.
func TestABypassReadsOnce(t *testing.T) {
	onNode(t, func(n *node) {
		boottimetest.Pass(2 * sharing)
		fill, reads := n.reads(shows("a")), 0
		read := fill.Primary
		fill.Primary = func(ctx context.Context, run string) (page.Read, error) {
			if reads++; reads > 1 {
				return page.Read{}, errOrigin
			}
			return read(ctx, run)
		}
		r, err := bypass(n.opened, n.q, fill)
		want{body: "a", source: cache.Origin}.check(t, r, err)
		if r.Age != 0 || n.Stats().Replica.Fills[replica.Merged] != 1 {
			t.Errorf("%v old, %+v", r.Age, n.Stats().Replica)
		}
	})
}

// While a machine sleeps, its nodes do not run and its monotonic clock stops. Nothing counts as younger because of that.
func TestAfterASleep(t *testing.T) {
	onNode(t, func(n *node) {
		n.asked(n.reads(shows("a")), "a", cache.Origin)
		began := time.Now()
		n.machine.Sleep(time.Minute)
		boottimetest.Pass(1)
		n.isHit("") // the clocks are compared
		n.beatOf(began)
		n.isHit("") // a read of the log that began before it proves nothing
		n.beat()
		n.isHit("a")
		n.SetTTLMode(true)
		n.asked(n.reads(shows("b")), "b", cache.Origin)
		n.machine.Sleep(time.Minute)
		n.isHit("")
	})
}

// A node without changes to follow judges by age, and keeps no rows.
func TestTTLMode(t *testing.T) {
	onNode(t, func(n *node) {
		n.asked(n.reads(shows("a")), "a", cache.Origin)
		n.SetTTLMode(true)
		if kept := n.Stats().Replica.Rows; n.Mode() != cache.ModeTTL || kept != 0 {
			t.Errorf("mode %s, the replica keeps %d rows", n.Mode(), kept)
		}
		boottimetest.Pass(ttl - 1)
		if r, ok := n.Hit(n.q, time.Now()); !ok || !r.ByTTL {
			t.Errorf("%t, %+v", ok, r)
		}
		boottimetest.Pass(1)
		n.isHit("")
		n.SetTTLMode(false)
		n.beat()
		n.asked(n.reads(shows("a")), "a", cache.Origin)
		n.isHit("a")
	})
}
