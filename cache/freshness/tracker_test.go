package freshness

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"listedge/internal/boottime/boottimetest"
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

// listener gives a tracker the log, and moments since the start of a test.
type listener struct {
	*Tracker
	start time.Time
}

func (l listener) now() time.Duration { return time.Since(l.start) }

func (l listener) Reset(epoch string, _ changefeed.ResetCause) { l.Tracker.Reset(epoch) }

func (l listener) Changed(at changefeed.Position, c *changefeed.Change) { l.Tracker.Changed(at, c) }

func (l listener) Settled(c *changefeed.Change) { l.Tracker.Settled(c, l.now()) }

func (l listener) ValidThrough(p changefeed.Proof) {
	l.Tracker.ValidThrough(p, p.Moment.Sub(l.start), l.now())
}

// trackerTest gives a tracker entries of the log one after the other.
type trackerTest struct {
	*testing.T
	listener
	feed *changefeed.Subscription
	last changefeed.Position
}

// newTrackerTest joins epoch e; nothing is proven yet.
func newTrackerTest(t *testing.T, last changefeed.Position) *trackerTest {
	l := listener{NewTracker(testBound, testFill, &changefeed.Followed{}), time.Now()}
	feed := changefeed.NewSubscription(l)
	feed.Follow("e")
	return &trackerTest{T: t, listener: l, feed: feed, last: last}
}

func (t *trackerTest) begin() FillStart { return t.Begin(t.now(), t.now()) }

func (t *trackerTest) admit(v *Validity, list changefeed.List) Admission {
	return t.Admit(t.begin(), v, list, t.now())
}

func (t *trackerTest) validate(v *Validity, list changefeed.List) bool {
	return t.ValidateFromRedis(v, list, t.now())
}

func (t *trackerTest) run() string {
	_, run := t.Primary(t.now())
	return run
}

// invalidated checks which transaction made the entry stale, and why.
func (t *trackerTest) invalidated(v *Validity, concern Concern, xid uint64) {
	t.Helper()
	if i := v.Invalidation(); i == nil || i.Concern != concern || i.XID != xid {
		t.Fatalf("%+v, want %s by %d", i, concern, xid)
	}
}

// virtually runs the test with a tracker that has joined epoch e, in virtual time.
func virtually(t *testing.T, test func(t *trackerTest)) {
	synctest.Test(t, func(t *testing.T) {
		tt := newTrackerTest(t, changefeed.Position{Term: 1})
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

func (t *trackerTest) changed(xid uint64, lists ...changefeed.List) {
	t.Helper()
	t.entry(changefeed.Entry{Change: &changefeed.Change{XID: xid, Lists: lists}})
}

func (t *trackerTest) beat(snapshot string) {
	t.Helper()
	t.entry(changefeed.Entry{Heartbeat: &changefeed.Heartbeat{Snapshot: snapshot}})
}

// dropAll is the work of changes of another list that fill the ring.
func (t *trackerTest) dropAll() {
	t.Helper()
	t.lists.ring.budget = 0
	t.changed(99, changefeed.List{Workspace: uuid.UUID{99}})
	t.lists.ring.budget = ringBudget
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

// read is what a statement with that snapshot reads now.
func (t *trackerTest) read(snapshot string) *Validity {
	t.Helper()
	return &Validity{ReadPoint: ReadPoint{Snapshot: parse(t, snapshot)}, Proof: t.now()}
}

func parse(t testing.TB, snapshot string) changefeed.Snapshot {
	t.Helper()
	s, err := changefeed.ParseSnapshot(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// filled is a page that was read at once and kept.
func (t *trackerTest) filled(snapshot string) *Validity {
	t.Helper()
	p := t.read(snapshot)
	if t.admit(p, listA) != Admitted {
		t.Fatal("not kept")
	}
	return p
}

// is checks by which rule the page is served: 1, 2 or none.
func (t *trackerTest) is(p *Validity, rule int) {
	t.Helper()
	got := 0
	if t.isCurrent(p) {
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
			if t.admit(t.read("100:102:101"), listA) == Admitted {
				t.Fatal("read again, and kept, without it")
			}
		}},
		{"a change of the whole collection", func(t *trackerTest) {
			p := t.filled("100:101:")
			t.entry(changefeed.Entry{Change: &changefeed.Change{XID: 101, Whole: 1 << changefeed.Items}})
			t.is(p, 0)
			if t.admit(t.read("100:101:"), listA) == Admitted {
				t.Fatal("a page that does not see it was kept")
			}
		}},
		{"a change of another collection as a whole", func(t *trackerTest) {
			p := t.filled("100:101:")
			t.entry(changefeed.Entry{Change: &changefeed.Change{XID: 101, Whole: 1 << changefeed.Contacts}})
			t.is(p, 1)
		}},
		{"a change that was dropped", func(t *trackerTest) {
			p := t.filled("100:102:")
			t.changed(100, listA)
			t.dropAll()
			t.is(p, 0) // nobody knows any more what it was
			t.invalidated(p, Forgotten, 0)
		}},
		{"a change that settled long ago", func(t *trackerTest) {
			p := t.filled("100:102:")
			t.changed(100, listA)
			t.prove("101:101:")
			boottimetest.Pass(testFill + 1)
			t.prove("101:101:")
			if n := len(t.changing); n != 0 {
				t.Fatalf("%d lists with recent changes", n)
			}
			t.is(p, 2)
		}},
		{"a change stays as long as a fill may take after it settled", func(t *trackerTest) {
			t.changed(100, listA)
			boottimetest.Pass(10 * testFill)
			t.prove("100:100:") // not yet
			t.prove("101:101:")
			boottimetest.Pass(testFill)
			t.prove("101:101:")
			if n := len(t.lists.of(listA).recent); n != 1 {
				t.Fatalf("%d recent changes", n)
			}
			boottimetest.Pass(time.Nanosecond)
			t.prove("101:101:")
			if n := len(t.lists.of(listA).recent); n != 0 {
				t.Fatalf("%d recent changes", n)
			}
		}},
		{"a fill that took too long", func(t *trackerTest) {
			start := t.begin()
			boottimetest.Pass(testFill + 1)
			if t.prove("100:100:"); t.Admit(start, t.read("100:100:"), listA, t.now()) == Admitted {
				t.Fatal("kept")
			}
		}},
		{"a fill begun without trust", func(t *trackerTest) {
			boottimetest.Pass(testBound)
			start := t.begin()
			if t.prove("100:100:"); t.Admit(start, t.read("100:100:"), listA, t.now()) == Admitted {
				t.Fatal("kept")
			}
		}},
		{"a fill across a resync", func(t *trackerTest) {
			start := t.begin()
			t.at(changefeed.Entry{Position: changefeed.Position{Term: 1, N: 1000}, Heartbeat: &changefeed.Heartbeat{Snapshot: "1:1:"}})
			if t.prove("100:100:"); t.Admit(start, t.read("100:100:"), listA, t.now()) == Admitted {
				t.Fatal("kept")
			}
		}},
		{"an epoch drops everything", func(t *trackerTest) {
			p := t.filled("100:100:")
			t.feed.Follow("f")
			t.is(p, 0)
			if t.Trusted(t.now()) {
				t.Fatal("goes on with the old one")
			}
		}},
		{"trust ends a bound after the read began", func(t *trackerTest) {
			t.look()
			boottimetest.Pass(testBound / 2) // on its way
			t.sends(changefeed.Heartbeat{Snapshot: "100:100:"})
			boottimetest.Pass(testBound/2 - 1)
			if !t.Trusted(t.now()) {
				t.Fatal("not trusted before")
			}
			if boottimetest.Pass(time.Nanosecond); t.Trusted(t.now()) {
				t.Fatal("trusted after")
			}
			t.sends(changefeed.Heartbeat{Snapshot: "100:100:"})
			if t.Trusted(t.now()) {
				t.Fatal("an old read renews trust")
			}
		}},
		{"a snapshot that cannot be read proves nothing", func(t *trackerTest) {
			boottimetest.Pass(testBound)
			if t.prove("x"); t.Trusted(t.now()) {
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
			if t.Trusted(t.now()) {
				t.Fatal("trusted")
			}
			t.prove("100:103:102", changefeed.Change{XID: 102, Lists: []changefeed.List{listA}})
			if !t.Trusted(t.now()) {
				t.Fatal("not trusted again")
			}
			if t.admit(t.read("100:103:102"), listA) == Admitted {
				t.Fatal("kept without a change that was unsettled when it joined")
			}
			if t.admit(t.read("103:103:"), listA) != Admitted {
				t.Fatal("not kept with it")
			}
		}},
		{"a page of another primary", func(t *trackerTest) {
			p := t.read("100:100:")
			p.ReadPoint.Run = "now"
			t.Tracker.last.Run = "then"
			if v := t.admit(p, listA); v != WrongServer {
				t.Fatal(v)
			}
			if t.Tracker.last.Run = "now"; t.admit(p, listA) != Admitted || t.run() != "now" {
				t.Fatal("not kept of the right one")
			}
			if boottimetest.Pass(testBound); t.run() != "" {
				t.Fatal("known without a proof")
			}
			start, late := t.begin(), t.read("100:100:")
			late.ReadPoint.Run = "then"
			if v := t.Admit(start, late, listA, t.now()); v != Untrusted {
				t.Fatal(v)
			}
			t.prove("100:100:")
			t.Tracker.last.Run = "now"
			if v := t.Admit(start, late, listA, t.now()); v != WrongServer { // it was begun when nothing was known
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
			if t.is(p, 0); t.Trusted(t.now()) {
				t.Fatal("trusted")
			}
			t.prove("100:103:102", changefeed.Change{XID: 102, Lists: []changefeed.List{listA}}) // what it said, perhaps
			if !t.Trusted(t.now()) {
				t.Fatal("not trusted again")
			}
			if t.is(p, 0); t.admit(t.read("100:103:102"), listA) == Admitted {
				t.Fatal("kept without what it said, perhaps")
			}
			t.filled("103:103:")
		}},
		{"a change that is not visible yet is waited for", func(t *trackerTest) {
			t.changed(100, listA)
			p := t.read("100:101:100")
			if t.admit(p, listA) != NotVisible || !t.AwaitsVisibility(p) {
				t.Fatal("kept, or not awaited")
			}
			if t.beat("101:101:"); t.AwaitsVisibility(p) {
				t.Fatal("awaited although it is visible")
			}
		}},
		{"of keys no page is made", func(t *trackerTest) {
			p := t.filled("100:100:")
			t.changed(100, changefeed.List{Workspace: uuid.UUID{1}, Collection: changefeed.Keys})
			t.entry(changefeed.Entry{Change: &changefeed.Change{XID: 101, Whole: 1 << changefeed.Keys}})
			if !t.isCurrent(p) || len(t.lists.known) != 1 {
				t.Fatalf("current: %v, %d lists", t.isCurrent(p), len(t.lists.known))
			}
		}},
		{"age", func(t *trackerTest) {
			p := t.filled("100:100:")
			boottimetest.Pass(300 * time.Millisecond)
			t.prove("100:100:")
			boottimetest.Pass(20 * time.Millisecond)
			if age := t.Age(p, t.now()); age != 20*time.Millisecond {
				t.Fatalf("%s since the proof", age)
			}
			if t.changed(100, listA); t.Age(p, t.now()) != 320*time.Millisecond {
				t.Fatalf("%s since it was read", t.Age(p, t.now()))
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) { virtually(t, test.run) })
	}
}

// A page from Redis brings epoch, position and snapshot along.
func TestValidateFromRedis(t *testing.T) {
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
				tt := newTrackerTest(t, changefeed.Position{Term: 5})
				tt.entry(changefeed.Entry{TermStart: &changefeed.TermStart{}})
				tt.prove("100:100:")
				tt.changed(100, listA)
				tt.changed(101, listB)
				p := tt.read(test.snapshot)
				p.Epoch, p.Position = test.epoch, test.position
				if got := tt.validate(p, listA); got != test.want {
					t.Fatal(got)
				}
				if test.want {
					tt.is(p, 1)
				}
				// A dropped change may be one that an entry did not see.
				tt.dropAll()
				q := tt.read(test.snapshot)
				q.Epoch, q.Position = test.epoch, test.position
				if got := tt.validate(q, listA); got != (test.want && test.position.N != 2) {
					t.Fatalf("after the change was dropped: %t", got)
				}
			})
		})
	}
}

// What a standby must have replayed for its page to be kept, and as of when
// the page is then known to be right.
func TestStandbys(t *testing.T) {
	change := func(lsn uint64, whole bool, lists ...changefeed.List) changefeed.Entry {
		c := &changefeed.Change{XID: lsn, LSN: lsn, Lists: lists}
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
		want    Admission
	}{
		{"as far as where this node joined", nil, "s/1", 50, Admitted},
		{"not that far", nil, "s/1", 49, Lagging},
		{"another timeline", nil, "s/2", 1000, WrongServer},
		{"as far as the list's last change", func(t *trackerTest) { t.entry(change(60, false, listA)) }, "s/1", 60, Admitted},
		{"not that far", func(t *trackerTest) { t.entry(change(60, false, listA)) }, "s/1", 59, Lagging},
		{"another list's change", func(t *trackerTest) { t.entry(change(60, false, listB)) }, "s/1", 50, Admitted},
		{"not as far as the collection's last change", func(t *trackerTest) { t.entry(change(60, true)) }, "s/1", 59, Lagging},
		{"not as far as one that was dropped", func(t *trackerTest) {
			t.entry(change(60, false, listA))
			t.dropAll()
		}, "s/1", 59, Lagging},
		{"not as far as one that was forgotten", func(t *trackerTest) {
			t.maxLists = 0
			t.entry(change(60, false, listA))
			t.beat("100:100:")
			boottimetest.Pass(testFill + 1)
			t.prove("100:100:")
			if len(t.lists.known) != 0 {
				t.Fatal("not forgotten")
			}
		}, "s/1", 59, Lagging},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt := newTrackerTest(t, changefeed.Position{Term: 1})
				tt.entry(changefeed.Entry{TermStart: &changefeed.TermStart{}})
				tt.look()
				tt.sends(changefeed.Heartbeat{LSN: 50, Snapshot: "1:1:", Server: "s/1"})
				if test.happens != nil {
					test.happens(tt)
					tt.Tracker.last.Server = "s/1" // which prove does not tell
				}
				proven := time.Duration(tt.proof.Load())
				boottimetest.Pass(testBound / 2)
				p := &Validity{ReadPoint: ReadPoint{Server: test.server, LSN: test.lsn}, Proof: tt.now()}
				if got := tt.admit(p, listA); got != test.want {
					t.Fatal(got)
				}
				if test.want != Admitted {
					return
				}
				if p.Proof != proven {
					t.Errorf("proven %s before what is known", proven-p.Proof)
				}
				tt.is(p, 1)
				tt.entry(change(test.lsn, false, listA)) // published late
				tt.is(p, 2)
				tt.entry(change(test.lsn+1, false, listA))
				tt.is(p, 0)
			})
		})
	}
}

// Pages of a list that is forgotten are read anew; what comes from Redis or a
// fill must be younger than what was forgotten.
func TestForgottenLists(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		p := t.filled("100:100:")
		q := t.read("100:100:")
		t.admit(q, listB)
		before := t.last
		t.changed(100, listA)
		changedAt := t.last
		t.changed(101, listB)
		t.maxLists = 2
		t.beat("102:102:")
		boottimetest.Pass(testFill + 1)
		t.prove("102:102:")
		if len(t.lists.known) != 2 {
			t.Fatal("forgotten before there are too many")
		}
		t.maxLists = 1
		t.prove("102:102:")
		if _, ok := t.lists.known[listB]; !ok || len(t.lists.known) != 1 {
			t.Fatalf("%v is known, and not the one that changed last", t.lists.known)
		}
		t.is(p, 0)
		for at, want := range map[changefeed.Position]bool{before: false, changedAt: true} {
			r := t.read("100:100:")
			r.Epoch, r.Position = "e", at
			if got := t.validate(r, listA); got != want {
				t.Errorf("valid from %s: %t", at, got)
			}
		}
		r := t.read("102:102:")
		if v := t.admit(r, listA); v != Admitted {
			t.Fatal(v)
		}
		t.is(r, 1)
		t.changed(102, listA)
		t.is(r, 0)
	})
}

// A page whose writer's clock is ahead looks younger than it is. It is taken for
// as young as this node's proof, and for no younger.
func TestAValidatedEntryIsNoYoungerThanTheProof(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		proven := t.now()
		boottimetest.Pass(testBound / 2)
		for read, want := range map[time.Duration]time.Duration{
			t.now():              proven,
			proven - time.Minute: proven - time.Minute,
		} {
			p := t.read("100:100:")
			p.Epoch, p.Position, p.Proof = "e", t.last, read
			if !t.validate(p, listA) || p.Proof != want {
				t.Errorf("%v after the proof", p.Proof-proven)
			}
		}
	})
}

// A node takes entries from Redis that were read from the server it follows, in
// its present run, and from standbys of it.
func TestValidateTakesEntriesOfTheFollowedServerAlone(t *testing.T) {
	for _, test := range []struct {
		name      string
		readPoint ReadPoint
		want      bool
	}{
		{"of the run that is followed", ReadPoint{Run: "now"}, true},
		{"of an earlier run, or of another server", ReadPoint{Run: "then"}, false},
		{"of nobody knows whom", ReadPoint{}, false},
		{"of a standby", ReadPoint{Server: "system/2"}, true},
		{"of a standby of the old primary", ReadPoint{Server: "system/1"}, false},
		{"of a standby that says a run", ReadPoint{Server: "system/1", Run: "now"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtually(t, func(t *trackerTest) {
				t.feed.Follow("f")
				t.entry(changefeed.Entry{TermStart: &changefeed.TermStart{}})
				t.look()
				t.sends(changefeed.Heartbeat{Snapshot: "100:100:", Server: "system/2", Run: "now"})
				p := t.read("100:100:")
				test.readPoint.Snapshot = p.ReadPoint.Snapshot
				p.ReadPoint, p.Epoch, p.Position = test.readPoint, "f", t.last
				if got := t.validate(p, listA); got != test.want {
					t.Errorf("valid: %t", got)
				}
			})
		})
	}
}

// Before a node has proof it adopts nothing, whatever it read.
func TestValidateBeforeProof(t *testing.T) {
	tr := newTrackerTest(t, changefeed.Position{Term: 1})
	tr.beat("1:1:")
	p := tr.read("5:5:")
	p.Epoch, p.Position = "e", changefeed.Position{Term: 1, N: 5}
	if tr.validate(p, listA) {
		t.Fatal("valid")
	}
}

// joinedTracker trusts, and knows so many recent changes of each workspace's list.
func joinedTracker(workspaces, changes int) *Tracker {
	t := NewTracker(time.Hour, time.Hour, &changefeed.Followed{})
	t.Reset("e")
	n := uint64(1)
	t.ValidThrough(changefeed.Proof{At: changefeed.Position{Term: 1, N: n}, First: changefeed.Position{Term: 1, N: n}}, 0, 0)
	for range changes {
		for w := range workspaces {
			n++
			t.Changed(changefeed.Position{Term: 1, N: n}, &changefeed.Change{XID: n, Lists: []changefeed.List{{Workspace: uuid.UUID{byte(w), byte(w >> 8), byte(w >> 16)}}}})
		}
	}
	return t
}

// What lists whose changes are known cost in memory.
func TestMemoryOfLists(t *testing.T) {
	const workspaces = 20_000
	for _, changes := range []int{1, 10} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		tracker := joinedTracker(workspaces, changes)
		runtime.GC()
		runtime.ReadMemStats(&after)
		per := float64(after.HeapAlloc-before.HeapAlloc) / workspaces
		t.Logf("%d changes each: %.0f kB per 1,000 workspaces", changes, per)
		if limit := float64(512 + 128*changes); per > limit {
			t.Errorf("%.0f bytes for each workspace, more than %.0f", per, limit)
		}
		runtime.KeepAlive(tracker)
	}
}

// What it costs to judge an entry: by rule 1, and by rule 2 with recent changes.
func BenchmarkIsFresh(b *testing.B) {
	for _, changes := range []int{0, 10, 1000} {
		b.Run(fmt.Sprintf("%d changes", changes), func(b *testing.B) {
			t := joinedTracker(1, changes)
			v := &Validity{ReadPoint: ReadPoint{Snapshot: parse(b, fmt.Sprintf("%d:%d:", changes+2, changes+2))}}
			if t.Admit(t.Begin(0, 0), v, changefeed.List{}, 0) != Admitted {
				b.Fatal("not admitted")
			}
			b.Run("rule 1", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if !t.IsFresh(v, 0) {
						b.Fatal("not fresh")
					}
				}
			})
			b.Run("rule 2", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					v.sequence.Store(t.join.Load())
					if !t.revalidate(v) {
						b.Fatal("not fresh")
					}
				}
			})
		})
	}
}

// Between a caller's look at the clock and its call a process may be paused for longer
// than a fill may take. By then the changes that the fill missed are not recent any more.
func TestAPausedFillIsLate(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		start, v, now := t.begin(), t.read("100:100:"), t.now()
		t.changed(100, listA)
		t.prove("101:101:")
		boottimetest.Pass(testFill + time.Millisecond)
		t.prove("101:101:")
		if a := t.Admit(start, v, listA, now); a != Late {
			t.Errorf("%s: its statement did not see the change", a)
		}
	})
}

// While nothing is proven nothing is forgotten either: so nothing may be
// remembered of what is only read.
func TestReadingRemembersNoListsWhileUntrusted(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		boottimetest.Pass(2 * testBound)
		before := len(t.lists.known)
		for i := range 1000 {
			list := changefeed.List{Workspace: uuid.UUID{7, byte(i), byte(i >> 8)}, Collection: changefeed.Items}
			if _, ok := t.Require(list, t.now()); ok {
				t.Fatal("trusted")
			}
			if v := t.admit(t.read("100:100:"), list); v != Untrusted {
				t.Fatal(v)
			}
		}
		if n := len(t.lists.known); n != before {
			t.Errorf("%d lists known, not %d", n, before)
		}
	})
}

// Lists whose changes lie equally far back are not all forgotten at once.
func TestForgettingLeavesHalf(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		t.maxLists = 1000
		for i := range t.maxLists + 1 {
			t.lists.of(changefeed.List{Workspace: uuid.UUID{8, byte(i), byte(i >> 8)}, Collection: changefeed.Items})
		}
		t.prove("100:100:")
		if n := len(t.lists.known); n < t.maxLists/2 || n > t.maxLists {
			t.Errorf("%d of %d are left", n, t.maxLists+1)
		}
	})
}

// A node that catches up gets all changes of a list, and then one heartbeat that settles
// them. The time for a change does not depend on how many there are.
func BenchmarkSettling(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list := changefeed.List{Workspace: uuid.New(), Collection: changefeed.Items}
			changes := make([]changefeed.Change, n)
			for i := range changes {
				changes[i] = changefeed.Change{XID: uint64(i + 1), LSN: uint64(i + 1), Lists: []changefeed.List{list}}
			}
			for b.Loop() {
				b.StopTimer()
				t := NewTracker(500*time.Millisecond, 5*time.Second, &changefeed.Followed{})
				for i := range changes {
					t.Changed(changefeed.Position{Term: 1, N: uint64(i + 1)}, &changes[i])
				}
				b.StartTimer()
				for i := range changes {
					t.Settled(&changes[i], time.Second)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/change")
		})
	}
}
