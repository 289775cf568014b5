package freshness

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

const (
	testBound = 500 * time.Millisecond
	testFill  = time.Second
)

var (
	listA = changefeed.List{Workspace: uuid.UUID{1}, Collection: lists.Items}
	listB = changefeed.List{Workspace: uuid.UUID{2}, Collection: lists.Items}
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

func (listener) Beat(changefeed.Beat) {}

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
	for name, test := range map[string]func(t *trackerTest){
		"rule 1 while nothing changes": func(t *trackerTest) {
			p := t.filled("100:100:")
			t.is(p, 1)
			t.changed(100, listB)
			t.is(p, 1)
		},
		"rule 2 when the page saw the change, then rule 1": func(t *trackerTest) {
			p := t.filled("100:102:101")
			t.changed(100, listA)
			t.is(p, 2)
			t.is(p, 1)
		},
		"neither when it did not": func(t *trackerTest) {
			p := t.filled("100:102:101")
			t.changed(101, listA)
			t.is(p, 0)
			if t.admit(t.read("100:102:101"), listA) == Admitted {
				t.Fatal("read again, and kept, without it")
			}
		},
		"a change of another collection as a whole": func(t *trackerTest) {
			p := t.filled("100:101:")
			t.entry(changefeed.Entry{Change: &changefeed.Change{XID: 101, Whole: 1 << lists.Contacts}})
			t.is(p, 1)
		},
		"a change that settled long ago": func(t *trackerTest) {
			p := t.filled("100:102:")
			t.changed(100, listA)
			t.prove("101:101:")
			boottimetest.Pass(testFill + 1)
			t.prove("101:101:")
			if n := len(t.changing); n != 0 {
				t.Fatalf("%d lists with recent changes", n)
			}
			t.is(p, 2)
		},
		"a change stays as long as a fill may take after it settled": func(t *trackerTest) {
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
		},
		"a fill begun without trust": func(t *trackerTest) {
			boottimetest.Pass(testBound)
			start := t.begin()
			if t.prove("100:100:"); t.Admit(start, t.read("100:100:"), listA, t.now()) == Admitted {
				t.Fatal("kept")
			}
		},
		"trust ends a bound after the read began": func(t *trackerTest) {
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
		},
		"a snapshot that cannot be read proves nothing": func(t *trackerTest) {
			boottimetest.Pass(testBound)
			if t.prove("x"); t.Trusted(t.now()) {
				t.Fatal("trusted")
			}
		},
		"a page of another primary": func(t *trackerTest) {
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
		},
		"a change that is not visible yet is waited for": func(t *trackerTest) {
			t.changed(100, listA)
			p := t.read("100:101:100")
			if t.admit(p, listA) != NotVisible || !t.AwaitsVisibility(p) {
				t.Fatal("kept, or not awaited")
			}
			if t.beat("101:101:"); t.AwaitsVisibility(p) {
				t.Fatal("awaited although it is visible")
			}
		},
		"of keys no page is made": func(t *trackerTest) {
			p := t.filled("100:100:")
			t.changed(100, changefeed.List{Workspace: uuid.UUID{1}, Collection: lists.Keys})
			t.entry(changefeed.Entry{Change: &changefeed.Change{XID: 101, Whole: 1 << lists.Keys}})
			if !t.isCurrent(p) || len(t.lists.known) != 1 {
				t.Fatalf("current: %v, %d lists", t.isCurrent(p), len(t.lists.known))
			}
		},
		"age": func(t *trackerTest) {
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
		},
	} {
		t.Run(name, func(t *testing.T) { virtually(t, test) })
	}
}

// What a standby must have replayed for its page to be kept, and as of when
// the page is then known to be right.
func TestStandbys(t *testing.T) {
	change := func(lsn uint64, list changefeed.List) changefeed.Entry {
		return changefeed.Entry{Change: &changefeed.Change{XID: lsn, LSN: lsn, Lists: []changefeed.List{list}}}
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
		{"as far as the list's last change", func(t *trackerTest) { t.entry(change(60, listA)) }, "s/1", 60, Admitted},
		{"not that far", func(t *trackerTest) { t.entry(change(60, listA)) }, "s/1", 59, Lagging},
		{"another list's change", func(t *trackerTest) { t.entry(change(60, listB)) }, "s/1", 50, Admitted},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt := newTrackerTest(t, changefeed.Position{Term: 1})
				tt.entry(changefeed.Entry{TermStart: &changefeed.TermStart{}})
				tt.look()
				tt.sends(changefeed.Heartbeat{LSN: 50, Snapshot: "1:1:", Server: "s/1"})
				if test.happens != nil {
					test.happens(tt)
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
				tt.entry(change(test.lsn, listA)) // published late
				tt.is(p, 2)
				tt.entry(change(test.lsn+1, listA))
				tt.is(p, 0)
			})
		})
	}
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

// A node takes entries from Redis that were read in the epoch that it follows, since it
// joined, from the server that it follows, in its present run, or from a standby of it.
func TestValidateTakesEntriesOfTheFollowedServerAlone(t *testing.T) {
	joined := changefeed.Position{Term: 1, N: 4} // where virtually ends, and two entries
	for name, test := range map[string]struct {
		readPoint ReadPoint
		epoch     string
		at        changefeed.Position
		want      bool
	}{
		"of the run that is followed":             {ReadPoint{Run: "now"}, "f", joined, true},
		"ahead of this node":                      {ReadPoint{Run: "now"}, "f", changefeed.Position{Term: 9, N: 1}, true},
		"from before this node joined":            {ReadPoint{Run: "now"}, "f", changefeed.Position{Term: 1, N: 1}, false},
		"of another epoch":                        {ReadPoint{Run: "now"}, "e", joined, false},
		"of an earlier run, or of another server": {ReadPoint{Run: "then"}, "f", joined, false},
		"of nobody knows whom":                    {ReadPoint{}, "f", joined, false},
		"of a standby":                            {ReadPoint{Server: "system/2"}, "f", joined, true},
		"of a standby of the old primary":         {ReadPoint{Server: "system/1"}, "f", joined, false},
		"of a standby that says a run":            {ReadPoint{Server: "system/1", Run: "now"}, "f", joined, false},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *trackerTest) {
				t.feed.Follow("f")
				validate := func() bool {
					p := t.read("100:100:")
					test.readPoint.Snapshot = p.ReadPoint.Snapshot
					p.ReadPoint, p.Epoch, p.Position = test.readPoint, test.epoch, test.at
					return t.validate(p, listA)
				}
				if validate() {
					t.Error("valid before anything is proven")
				}
				t.entry(changefeed.Entry{TermStart: &changefeed.TermStart{}})
				t.look()
				t.sends(changefeed.Heartbeat{Snapshot: "100:100:", Server: "system/2", Run: "now"})
				if t.last != joined {
					t.Fatal(t.last)
				}
				if got := validate(); got != test.want {
					t.Errorf("valid: %t", got)
				}
			})
		})
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
			list := changefeed.List{Workspace: uuid.UUID{7, byte(i), byte(i >> 8)}, Collection: lists.Items}
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

// Lists whose changes lie equally far back are not all forgotten at once, and the one that
// changed last stays.
func TestForgettingLeavesHalf(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		t.maxLists = 1000
		t.changed(100, listA)
		t.prove("101:101:")
		boottimetest.Pass(testFill + 1)
		for i := range t.maxLists {
			t.lists.of(changefeed.List{Workspace: uuid.UUID{8, byte(i), byte(i >> 8)}, Collection: lists.Items})
		}
		t.prove("101:101:")
		if n := len(t.lists.known); n < t.maxLists/2 || n > t.maxLists || t.lists.known[listA] == nil {
			t.Errorf("%d of %d are left, the last one: %t", n, t.maxLists+1, t.lists.known[listA] != nil)
		}
	})
}
