package cache

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

const (
	testBound = 500 * time.Millisecond
	testFill  = time.Second
)

var (
	listA = changefeed.List{Workspace: uuid.UUID{1}, Collection: changefeed.Items}
	listB = changefeed.List{Workspace: uuid.UUID{2}, Collection: changefeed.Items}
)

// trackerTest feeds a tracker entries one after the other.
type trackerTest struct {
	*testing.T
	*tracker
	feed *changefeed.Subscription
	last changefeed.Position
}

// newTrackerTest joins epoch e; nothing is proven yet.
func newTrackerTest(t *testing.T, c *boottime.Clock, last changefeed.Position) *trackerTest {
	tr := newTracker(testBound, testFill, c)
	feed := changefeed.NewSubscription(tr)
	feed.Follow("e")
	return &trackerTest{T: t, tracker: tr, feed: feed, last: last}
}

// virtually runs the test with a tracker that has joined epoch e, in virtual time.
func virtually(t *testing.T, test func(t *trackerTest)) {
	synctest.Test(t, func(t *testing.T) {
		tt := newTrackerTest(t, boottime.New(), changefeed.Position{Term: 1})
		tt.entry(changefeed.Entry{TermStart: &changefeed.TermStart{}})
		tt.prove("100:100:")
		test(tt)
	})
}

func (t *trackerTest) at(e changefeed.Entry) bool {
	t.Helper()
	t.last = e.Position
	return len(t.feed.Apply(time.Now(), []changefeed.Entry{e}, true)) == 0
}

func (t *trackerTest) entry(e changefeed.Entry) {
	t.Helper()
	e.Position = changefeed.Position{Term: t.last.Term, N: t.last.N + 1}
	if !t.at(e) {
		t.Fatalf("a gap before %s", e.Position)
	}
}

func (t *trackerTest) changed(xid uint64, pairs ...changefeed.List) {
	t.Helper()
	t.entry(changefeed.Entry{Change: &changefeed.Change{XID: xid, Lists: pairs}})
}

func (t *trackerTest) beat(snapshot string) {
	t.Helper()
	t.entry(changefeed.Entry{Heartbeat: &changefeed.Heartbeat{Snapshot: snapshot}})
}

// look is a read of the log that finds its end.
func (t *trackerTest) look() { t.feed.Apply(time.Now(), nil, false) }

// sends is a heartbeat whose snapshot was taken after all looks up to now.
func (t *trackerTest) sends(h changefeed.Heartbeat) {
	t.Helper()
	h.After = changefeed.Position{Term: t.last.Term, N: t.last.N + 1}
	t.entry(changefeed.Entry{Heartbeat: &h})
}

// prove proves this moment.
func (t *trackerTest) prove(snapshot string, unsettled ...changefeed.Change) {
	t.Helper()
	t.look()
	t.sends(changefeed.Heartbeat{Snapshot: snapshot, Unsettled: unsettled})
}

func page(t testing.TB, snapshot string) *Entry {
	t.Helper()
	s, err := changefeed.ParseSnapshot(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return &Entry{View: View{Snapshot: s}, Proof: time.Now()}
}

// filled is a page that was read at once and kept.
func (t *trackerTest) filled(snapshot string) *Entry {
	t.Helper()
	p := page(t, snapshot)
	if t.accept(t.begin(), p, listA) != kept {
		t.Fatal("not kept")
	}
	return p
}

// is checks by which rule the page is served: 1, 2 or none.
func (t *trackerTest) is(p *Entry, rule int) {
	t.Helper()
	got := 0
	if t.stands(p) {
		got = 1
	} else if t.revalidate(p) {
		got = 2
	}
	if got != rule {
		t.Fatalf("served by rule %d, want %d", got, rule)
	}
}

func TestRules(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(t *trackerTest)
	}{
		{"rule 1 while nothing changes", func(t *trackerTest) {
			p := t.filled("100:100:")
			t.is(p, 1)
			t.changed(100, listB)
			t.is(p, 1)
		}},
		{"rule 2 when the page saw the change, then rule 1", func(t *trackerTest) {
			p := t.filled("100:102:101")
			t.changed(100, listA)
			t.is(p, 2)
			t.is(p, 1)
		}},
		{"neither when it did not", func(t *trackerTest) {
			p := t.filled("100:102:101")
			t.changed(101, listA)
			t.is(p, 0)
			if t.accept(t.begin(), page(t, "100:102:101"), listA) == kept {
				t.Fatal("read again, and kept, without it")
			}
		}},
		{"a change of the whole collection", func(t *trackerTest) {
			p := t.filled("100:101:")
			t.entry(changefeed.Entry{Change: &changefeed.Change{XID: 101, Whole: 1 << changefeed.Items}})
			t.is(p, 0)
			if t.accept(t.begin(), page(t, "100:101:"), listA) == kept {
				t.Fatal("a page that does not see it was kept")
			}
		}},
		{"a change of another collection as a whole", func(t *trackerTest) {
			p := t.filled("100:101:")
			t.entry(changefeed.Entry{Change: &changefeed.Change{XID: 101, Whole: 1 << changefeed.Contacts}})
			t.is(p, 1)
		}},
		{"a change that left the ring", func(t *trackerTest) {
			p := t.filled("100:102:")
			t.changed(100, listA)
			t.prove("101:101:")
			time.Sleep(testFill + 1)
			t.prove("101:101:")
			if n := len(t.open); n != 0 {
				t.Fatalf("%d rings", n)
			}
			t.is(p, 0) // nobody knows any more what it was
		}},
		{"a change stays as long as a fill may take after it settled", func(t *trackerTest) {
			t.changed(100, listA)
			time.Sleep(10 * testFill)
			t.prove("100:100:") // not yet
			t.prove("101:101:")
			time.Sleep(testFill)
			t.prove("101:101:")
			if n := len(t.pairs.of(listA).ring); n != 1 {
				t.Fatalf("%d in the ring", n)
			}
			time.Sleep(time.Nanosecond)
			t.prove("101:101:")
			if n := len(t.pairs.of(listA).ring); n != 0 {
				t.Fatalf("%d in the ring", n)
			}
		}},
		{"a fill that took too long", func(t *trackerTest) {
			start := t.begin()
			time.Sleep(testFill + 1)
			if t.prove("100:100:"); t.accept(start, page(t, "100:100:"), listA) == kept {
				t.Fatal("kept")
			}
		}},
		{"a fill begun without trust", func(t *trackerTest) {
			time.Sleep(testBound)
			start := t.begin()
			if t.prove("100:100:"); t.accept(start, page(t, "100:100:"), listA) == kept {
				t.Fatal("kept")
			}
		}},
		{"a fill across a resync", func(t *trackerTest) {
			start := t.begin()
			t.at(changefeed.Entry{Position: changefeed.Position{Term: 1, N: 1000}, Heartbeat: &changefeed.Heartbeat{Snapshot: "1:1:"}})
			if t.prove("100:100:"); t.accept(start, page(t, "100:100:"), listA) == kept {
				t.Fatal("kept")
			}
		}},
		{"an epoch drops everything", func(t *trackerTest) {
			p := t.filled("100:100:")
			t.feed.Follow("f")
			t.is(p, 0)
			if t.trusted(time.Now()) {
				t.Fatal("goes on with the old one")
			}
		}},
		{"trust ends a bound after the read began", func(t *trackerTest) {
			t.look()
			time.Sleep(testBound / 2) // on its way
			t.sends(changefeed.Heartbeat{Snapshot: "100:100:"})
			time.Sleep(testBound/2 - 1)
			if !t.trusted(time.Now()) {
				t.Fatal("not trusted before")
			}
			if time.Sleep(time.Nanosecond); t.trusted(time.Now()) {
				t.Fatal("trusted after")
			}
			t.sends(changefeed.Heartbeat{Snapshot: "100:100:"})
			if t.trusted(time.Now()) {
				t.Fatal("an old read renews trust")
			}
		}},
		{"a snapshot that cannot be read proves nothing", func(t *trackerTest) {
			time.Sleep(testBound)
			if t.prove("x"); t.trusted(time.Now()) {
				t.Fatal("trusted")
			}
		}},
		{"another term that follows, and one that does not", func(t *trackerTest) {
			p := t.filled("100:100:")
			before := t.last
			if !t.at(changefeed.Entry{Position: changefeed.Position{Term: 9, N: 1}, TermStart: &changefeed.TermStart{Previous: before}}) {
				t.Fatal("a gap")
			}
			t.is(p, 1)
			if t.at(changefeed.Entry{Position: changefeed.Position{Term: 12, N: 1}, TermStart: &changefeed.TermStart{Previous: before}}) {
				t.Fatal("no gap")
			}
			t.is(p, 0)
		}},
		{"after a gap it goes on from there", func(t *trackerTest) {
			if t.at(changefeed.Entry{Position: changefeed.Position{Term: 1, N: 1000}, Heartbeat: &changefeed.Heartbeat{Snapshot: "1:1:"}}) {
				t.Fatal("no gap")
			}
			if _, after := t.feed.Next(); after != t.last {
				t.Fatalf("reads on after %s: what is missing would be missed again", after)
			}
			if t.trusted(time.Now()) {
				t.Fatal("trusted")
			}
			t.prove("100:103:102", changefeed.Change{XID: 102, Lists: []changefeed.List{listA}})
			if !t.trusted(time.Now()) {
				t.Fatal("not trusted again")
			}
			if t.accept(t.begin(), page(t, "100:103:102"), listA) == kept {
				t.Fatal("kept without a change that was unsettled when it joined")
			}
			if t.accept(t.begin(), page(t, "103:103:"), listA) != kept {
				t.Fatal("not kept with it")
			}
		}},
		{"a page of another primary", func(t *trackerTest) {
			p := page(t, "100:100:")
			p.View.Run = "now"
			t.run = "then"
			if v := t.accept(t.begin(), p, listA); v != foreign {
				t.Fatal(v)
			}
			if t.run = "now"; t.accept(t.begin(), p, listA) != kept || t.primaryRun(time.Now()) != "now" {
				t.Fatal("not kept of the right one")
			}
			if time.Sleep(testBound); t.primaryRun(time.Now()) != "" {
				t.Fatal("known without a proof")
			}
			start, late := t.begin(), page(t, "100:100:")
			late.View.Run = "then"
			if v := t.accept(start, late, listA); v != untrusted {
				t.Fatal(v)
			}
			t.prove("100:100:")
			t.run = "now"
			if v := t.accept(start, late, listA); v != foreign { // it was begun when nothing was known
				t.Fatal(v)
			}
		}},
		{"behind an entry that cannot be decoded it begins anew", func(t *trackerTest) {
			p := t.filled("100:100:")
			if t.at(changefeed.Entry{Position: changefeed.Position{Term: 1, N: t.last.N + 1}}) {
				t.Fatal("passed over")
			}
			if _, after := t.feed.Next(); after != t.last {
				t.Fatalf("reads on after %s: it would be met again", after)
			}
			if t.is(p, 0); t.trusted(time.Now()) {
				t.Fatal("trusted")
			}
			t.prove("100:103:102", changefeed.Change{XID: 102, Lists: []changefeed.List{listA}}) // what it said, perhaps
			if !t.trusted(time.Now()) {
				t.Fatal("not trusted again")
			}
			if t.is(p, 0); t.accept(t.begin(), page(t, "100:103:102"), listA) == kept {
				t.Fatal("kept without what it said, perhaps")
			}
			t.filled("103:103:")
		}},
		{"a change that is not visible yet is waited for", func(t *trackerTest) {
			t.changed(100, listA)
			p := page(t, "100:101:100")
			if t.accept(t.begin(), p, listA) != unseen || !t.awaited(p) {
				t.Fatal("kept, or not awaited")
			}
			if t.beat("101:101:"); t.awaited(p) {
				t.Fatal("awaited although it is visible")
			}
		}},
		{"of keys no page is made", func(t *trackerTest) {
			p := t.filled("100:100:")
			t.changed(100, changefeed.List{Workspace: uuid.UUID{1}, Collection: changefeed.Keys})
			t.entry(changefeed.Entry{Change: &changefeed.Change{XID: 101, Whole: 1 << changefeed.Keys}})
			if !t.stands(p) || len(t.pairs.known) != 1 {
				t.Fatalf("stands: %v, %d pairs", t.stands(p), len(t.pairs.known))
			}
		}},
		{"age", func(t *trackerTest) {
			p := t.filled("100:100:")
			time.Sleep(300 * time.Millisecond)
			t.prove("100:100:")
			time.Sleep(20 * time.Millisecond)
			if age := t.age(p, time.Now()); age != 20*time.Millisecond {
				t.Fatalf("%s since the proof", age)
			}
			if t.changed(100, listA); t.age(p, time.Now()) != 320*time.Millisecond {
				t.Fatalf("%s since it was read", t.age(p, time.Now()))
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) { virtually(t, test.run) })
	}
}

// A page from Redis brings epoch, position and snapshot along.
func TestAdopt(t *testing.T) {
	for _, test := range []struct {
		name     string
		epoch    string
		position changefeed.Position
		snapshot string
		want     bool
	}{
		{"read after all changes", "e", changefeed.Position{Term: 5, N: 5}, "103:103:", true},
		{"ahead of this node", "e", changefeed.Position{Term: 6, N: 1}, "103:103:", true},
		{"at the change it did not see", "e", changefeed.Position{Term: 5, N: 3}, "100:100:", true},
		{"before it, unseen", "e", changefeed.Position{Term: 5, N: 2}, "100:100:", false},
		{"before it, seen", "e", changefeed.Position{Term: 5, N: 2}, "101:101:", true},
		{"before this node joined", "e", changefeed.Position{Term: 4, N: 99}, "103:103:", false},
		{"of another epoch", "d", changefeed.Position{Term: 5, N: 5}, "103:103:", false},
		{"of none", "", changefeed.Position{}, "103:103:", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt := newTrackerTest(t, boottime.New(), changefeed.Position{Term: 5})
				tt.entry(changefeed.Entry{TermStart: &changefeed.TermStart{}})
				tt.prove("100:100:")
				tt.changed(100, listA)
				tt.changed(101, listB)
				p := page(t, test.snapshot)
				p.Epoch, p.Position = test.epoch, test.position
				if got := tt.adopt(p, listA); got != test.want {
					t.Fatal(got)
				}
				if test.want {
					tt.is(p, 1)
				}
				// What has left the ring may be what a page did not see.
				tt.beat("102:102:")
				time.Sleep(testFill + 1)
				tt.prove("102:102:")
				q := page(t, test.snapshot)
				q.Epoch, q.Position = test.epoch, test.position
				if got := tt.adopt(q, listA); got != (test.want && test.position.N != 2) {
					t.Fatalf("after the ring was pruned: %t", got)
				}
			})
		})
	}
	t.Run("the pruned position never goes back", func(t *testing.T) {
		virtually(t, func(t *trackerTest) {
			t.changed(100, listA) // settles last
			t.changed(101, listA)
			newer := t.last
			t.prove("100:102:100")
			time.Sleep(testFill + 1)
			t.prove("102:102:")
			time.Sleep(testFill + 1)
			if t.prove("102:102:"); t.pairs.of(listA).pruned.position != newer {
				t.Fatalf("pruned at %s", t.pairs.of(listA).pruned.position)
			}
		})
	})
}

// What a standby must have replayed for its page to be kept, and as of when
// the page is then known to be right.
func TestStandbys(t *testing.T) {
	change := func(lsn uint64, whole bool, pairs ...changefeed.List) changefeed.Entry {
		c := &changefeed.Change{XID: lsn, LSN: lsn, Lists: pairs}
		if whole {
			c.Whole = 1 << changefeed.Items
		}
		return changefeed.Entry{Change: c}
	}
	for _, test := range []struct {
		name    string
		happens func(t *trackerTest)
		server  string
		lsn     uint64
		want    verdict
	}{
		{"as far as where this node joined", nil, "s/1", 50, kept},
		{"not that far", nil, "s/1", 49, behind},
		{"another timeline", nil, "s/2", 1000, foreign},
		{"as far as the pair's last change", func(t *trackerTest) { t.entry(change(60, false, listA)) }, "s/1", 60, kept},
		{"not that far", func(t *trackerTest) { t.entry(change(60, false, listA)) }, "s/1", 59, behind},
		{"another pair's change", func(t *trackerTest) { t.entry(change(60, false, listB)) }, "s/1", 50, kept},
		{"not as far as the collection's last change", func(t *trackerTest) { t.entry(change(60, true)) }, "s/1", 59, behind},
		{"not as far as one that left the ring", func(t *trackerTest) {
			t.entry(change(60, false, listA))
			t.beat("100:100:")
			time.Sleep(testFill + 1)
			t.prove("100:100:")
		}, "s/1", 59, behind},
		{"not as far as one that was forgotten", func(t *trackerTest) {
			t.most = 0
			t.entry(change(60, false, listA))
			t.beat("100:100:")
			time.Sleep(testFill + 1)
			t.prove("100:100:")
			if len(t.pairs.known) != 0 {
				t.Fatal("not forgotten")
			}
		}, "s/1", 59, behind},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt := newTrackerTest(t, boottime.New(), changefeed.Position{Term: 1})
				tt.entry(changefeed.Entry{TermStart: &changefeed.TermStart{}})
				tt.look()
				tt.sends(changefeed.Heartbeat{LSN: 50, Snapshot: "1:1:", Server: "s/1"})
				if test.happens != nil {
					test.happens(tt)
					tt.server = "s/1" // which prove does not tell
				}
				proven := tt.start.Add(time.Duration(tt.proof.Load()))
				time.Sleep(testBound / 2)
				p := &Entry{View: View{Server: test.server, LSN: test.lsn}, Proof: time.Now()}
				if got := tt.accept(tt.begin(), p, listA); got != test.want {
					t.Fatal(got)
				}
				if test.want != kept {
					return
				}
				if !p.Proof.Equal(proven) {
					t.Errorf("proven %s before what is known", proven.Sub(p.Proof))
				}
				tt.is(p, 1)
				tt.entry(change(test.lsn, false, listA)) // told late
				tt.is(p, 2)
				tt.entry(change(test.lsn+1, false, listA))
				tt.is(p, 0)
			})
		})
	}
}

// Pages of a pair that is forgotten are read anew; what comes from Redis or a
// fill must be younger than what was forgotten.
func TestForgottenPairs(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		p := t.filled("100:100:")
		q := page(t.T, "100:100:")
		t.accept(t.begin(), q, listB)
		before := t.last
		t.changed(100, listA)
		changedAt := t.last
		t.changed(101, listB)
		t.most = 2
		t.beat("102:102:")
		time.Sleep(testFill + 1)
		t.prove("102:102:")
		if len(t.pairs.known) != 2 {
			t.Fatal("forgotten before there are too many")
		}
		t.most = 1
		t.prove("102:102:")
		if _, ok := t.pairs.known[listB]; !ok || len(t.pairs.known) != 1 {
			t.Fatalf("%v is known, and not the one that changed last", t.pairs.known)
		}
		t.is(p, 0)
		for at, want := range map[changefeed.Position]bool{before: false, changedAt: true} {
			r := page(t.T, "100:100:")
			r.Epoch, r.Position = "e", at
			if got := t.adopt(r, listA); got != want {
				t.Errorf("adopted from %s: %t", at, got)
			}
		}
		r := page(t.T, "102:102:")
		if v := t.accept(t.begin(), r, listA); v != kept {
			t.Fatal(v)
		}
		t.is(r, 1)
		t.changed(102, listA)
		t.is(r, 0)
	})
}

// A page whose writer's clock is ahead looks younger than it is. It is taken for
// as young as this node's proof, and for no younger.
func TestAnAdoptedPageIsNoYoungerThanTheProof(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		proven := time.Now()
		time.Sleep(testBound / 2)
		for read, want := range map[time.Time]time.Time{
			time.Now():               proven,
			proven.Add(-time.Minute): proven.Add(-time.Minute),
		} {
			p := page(t.T, "100:100:")
			p.Epoch, p.Position, p.Proof = "e", t.last, read
			if !t.adopt(p, listA) || !p.Proof.Equal(want) {
				t.Errorf("%v after the proof", p.Proof.Sub(proven))
			}
		}
	})
}

// Before a node has proof it adopts nothing, whatever it read.
func TestAdoptBeforeProof(t *testing.T) {
	tr := newTrackerTest(t, boottime.New(), changefeed.Position{Term: 1})
	tr.beat("1:1:")
	p := page(t, "5:5:")
	p.Epoch, p.Position = "e", changefeed.Position{Term: 1, N: 5}
	if tr.adopt(p, listA) {
		t.Fatal("adopted")
	}
}

// joinedTracker has pairs with rings.
func joinedTracker(tb testing.TB, workspaces, ring int) *tracker {
	tr := newTracker(time.Hour, time.Hour, boottime.New())
	tr.Reset("e", changefeed.ResetJoin)
	n := uint64(1)
	tr.ValidThrough(changefeed.Proof{Moment: time.Now(), At: changefeed.Position{Term: 1, N: n}, First: changefeed.Position{Term: 1, N: n}})
	for range ring {
		for w := range workspaces {
			n++
			tr.Changed(changefeed.Position{Term: 1, N: n}, &changefeed.Change{XID: n, Lists: []changefeed.List{{Workspace: uuid.UUID{byte(w), byte(w >> 8), byte(w >> 16)}}}})
		}
	}
	return tr
}

// What the serving check costs: rule 1, and rule 2 behind a ring.
func BenchmarkServingCheck(b *testing.B) {
	for _, ring := range []int{0, 10, 1000} {
		b.Run(fmt.Sprintf("ring of %d", ring), func(b *testing.B) {
			tr := joinedTracker(b, 1, ring)
			f := &following{tracker: tr}
			now := time.Now()
			p := page(b, fmt.Sprintf("%d:%d:", ring+2, ring+2))
			if tr.accept(tr.begin(), p, changefeed.List{}) != kept {
				b.Fatal("not kept")
			}
			b.Run("rule 1", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if !f.fresh(p, now) {
						b.Fatal("not fresh")
					}
				}
			})
			b.Run("rule 2", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					p.sequence.Store(tr.join.Load())
					if !tr.revalidate(p) {
						b.Fatal("not fresh")
					}
				}
			})
		})
	}
}

// While nothing is proven nothing is forgotten either: so nothing may be
// remembered of what is only read.
func TestReadingRemembersNoPairsWhileUntrusted(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		time.Sleep(2 * testBound)
		before := len(t.pairs.known)
		for i := range 1000 {
			pair := changefeed.List{Workspace: uuid.UUID{7, byte(i), byte(i >> 8)}, Collection: changefeed.Items}
			if _, ok := t.needed(pair); ok {
				t.Fatal("trusted")
			}
			if v := t.accept(t.begin(), page(t, "100:100:"), pair); v != untrusted {
				t.Fatal(v)
			}
		}
		if n := len(t.pairs.known); n != before {
			t.Errorf("%d pairs known, not %d", n, before)
		}
	})
}

// Pairs whose changes lie equally far back are not all forgotten at once.
func TestForgettingLeavesHalf(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		t.most = 1000
		for i := range t.most + 1 {
			t.pairs.of(changefeed.List{Workspace: uuid.UUID{8, byte(i), byte(i >> 8)}, Collection: changefeed.Items})
		}
		t.prove("100:100:")
		if n := len(t.pairs.known); n < t.most/2 || n > t.most {
			t.Errorf("%d of %d are left", n, t.most+1)
		}
	})
}
