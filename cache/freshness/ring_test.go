package freshness

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/uuid"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// rowID is an id, and no two of them have the same tag.
func rowID(i int) (id uuid.UUID) {
	binary.BigEndian.PutUint32(id[:], uint32(i))
	return id
}

// shows is the extent of a page of a list by createdAt, which has the rows of 200 to 100.
func shows(rows ...int) *Extent {
	e := &Extent{After: Bound{Kind: At, CreatedAt: 201}, End: Bound{Kind: At, CreatedAt: 100}}
	for _, i := range rows {
		e.Tags = append(e.Tags, Tag(rowID(i)))
	}
	return e
}

// createdAt is a row with its place in a list.
func createdAt(i int, at int64) lists.Row { return lists.Row{ID: rowID(i), CreatedAt: at} }

// behind is a row behind the pages.
func behind(i int) lists.Row { return createdAt(i, 99) }

func gone(i int) lists.Row { return lists.Row{ID: rowID(i), Flags: lists.Gone} }

// changedRows is a transaction that names its rows.
func (t *trackerTest) changedRows(xid uint64, list changefeed.List, rows ...lists.Row) {
	t.Helper()
	t.entry(changefeed.Entry{Change: &changefeed.Change{XID: xid, LSN: xid, CommittedAt: int64(xid) * 1e6,
		Lists: []changefeed.List{listB, list}, Rows: [][]lists.Row{{gone(999)}, rows}}})
}

// shown is a page that was read at once, with its extent.
func (t *trackerTest) shown(snapshot string, e *Extent) *Validity {
	t.Helper()
	v := t.read(snapshot)
	v.Extent = e
	if t.admit(v, listA) != Admitted {
		t.Fatal("not admitted")
	}
	return v
}

// What a change does to a page that was read before it, and that shows rows 1 and 2
// of its list, and knows of row 3 behind them.
func TestConcerns(t *testing.T) {
	for _, test := range []struct {
		name string
		rows []lists.Row
		want Concern
	}{
		{"a row that it shows", []lists.Row{behind(2)}, ShowsRow},
		{"a row that it showed", []lists.Row{gone(1)}, ShowsRow},
		{"the row behind it", []lists.Row{gone(3)}, ShowsRow},
		{"another row that is deleted", []lists.Row{gone(4)}, Unconcerned},
		{"a row before it", []lists.Row{createdAt(4, 202)}, Unconcerned},
		{"a row behind it", []lists.Row{createdAt(4, 99)}, Unconcerned},
		{"a row in it", []lists.Row{createdAt(4, 150)}, RowEntered},
		{"one of several", []lists.Row{behind(4), createdAt(5, 99), behind(2)}, ShowsRow},
		{"none of several", []lists.Row{behind(4), createdAt(5, 99), gone(6)}, Unconcerned},
		{"any row", nil, AnyRow},
		{"no row, it says", []lists.Row{}, AnyRow},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtually(t, func(t *trackerTest) {
				v := t.shown("100:100:", shows(1, 2, 3))
				t.changedRows(100, listA, test.rows...)
				if rule := 0; test.want == Unconcerned {
					t.is(v, 2)
				} else {
					t.is(v, rule)
					t.invalidated(v, test.want, 100)
					if i := v.Invalidation(); i.Position != t.last || i.CommittedAt != 100e6 {
						t.Errorf("%+v", i)
					}
				}
				if n := t.Stats().Compared[test.want]; n != 1 {
					t.Errorf("counted %d times", n)
				}
				// A page that is read now, and does not see it yet.
				r := t.read("100:100:")
				r.Extent = shows(1, 2, 3)
				want := map[bool]Admission{true: Admitted, false: NotVisible}[test.want == Unconcerned]
				if got := t.admit(r, listA); got != want {
					t.Errorf("a page read now: %s", got)
				}
			})
		})
	}
	t.Run("of a page without extent", func(t *testing.T) {
		virtually(t, func(t *trackerTest) {
			v := t.shown("100:100:", nil)
			t.changedRows(100, listA, gone(4))
			t.is(v, 0)
			t.invalidated(v, NoExtent, 100)
		})
	})
	t.Run("the first of several changes", func(t *testing.T) {
		virtually(t, func(t *trackerTest) {
			v := t.shown("100:100:", shows(1, 2, 3))
			t.changedRows(100, listA, gone(4))
			t.changedRows(101, listA, gone(1))
			t.changedRows(102, listA, gone(2))
			t.is(v, 0)
			t.invalidated(v, ShowsRow, 101)
		})
	})
}

// An entry is compared with exactly the changes after its sequence or its position:
// with each of ten, where one concerns the page.
func TestAnEntryIsComparedWithNewerChangesAlone(t *testing.T) {
	const changes = 10
	for concerning := range changes {
		virtually(t, func(t *trackerTest) {
			positions := []changefeed.Position{t.last}
			var entries []*Validity
			for i := range changes {
				entries = append(entries, t.shown(fmt.Sprintf("%d:%d:", 100+i, 100+i), shows(1, 2, 3)))
				row := behind(10 + i)
				if i == concerning {
					row = behind(1)
				}
				t.changedRows(100+uint64(i), listA, row)
				positions = append(positions, t.last)
			}
			for i, v := range entries {
				if kept := t.revalidate(v); kept != (i > concerning) {
					t.Errorf("change %d of %d concerns it, the entry before change %d is kept: %t", concerning, changes, i, kept)
				}
			}
			for i, position := range positions {
				v := t.read("100:100:")
				v.Epoch, v.Position, v.Extent = "e", position, shows(1, 2, 3)
				if valid := t.validate(v, listA); valid != (i > concerning) {
					t.Errorf("change %d of %d concerns it, the entry from Redis before change %d is valid: %t", concerning, changes, i, valid)
				}
			}
			for i := range changes + 1 {
				t.Tracker.last.Server = "s/1"
				v := &Validity{Extent: shows(1, 2, 3), ReadPoint: ReadPoint{Server: "s/1", LSN: 99 + uint64(i)}}
				if admitted := t.admit(v, listA) == Admitted; admitted != (i > concerning) {
					t.Errorf("change %d of %d concerns it, the standby's page after %d changes is admitted: %t", concerning, changes, i, admitted)
				}
			}
		})
	}
}

// A change that a new follower publishes once more is compared once more.
func TestAStandbysPageIsComparedWithRepeatedChanges(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		t.Tracker.last.Server = "s/1"
		t.changedRows(100, listA, behind(7))
		t.changedRows(105, listA, behind(8))
		t.changedRows(100, listA, behind(7))
		t.changedRows(101, listA, behind(1))
		for lsn, want := range map[uint64]Admission{99: Lagging, 100: Lagging, 104: Lagging, 105: Admitted} {
			v := &Validity{Extent: shows(1, 2, 3), ReadPoint: ReadPoint{Server: "s/1", LSN: lsn}}
			if got := t.admit(v, listA); got != want {
				t.Errorf("replayed up to %d: %s", lsn, got)
			}
		}
	})
}

func TestTooManyRowsAreNotCompared(t *testing.T) {
	for _, test := range []struct {
		name          string
		changes, rows int
		want          Concern
	}{
		{"as many changes as may be", maxRows, 1, Unconcerned},
		{"one too many", maxRows + 1, 1, TooManyRows},
		{"as many rows as may be", maxRows / 50, 50, Unconcerned},
		{"too many rows", maxRows/50 + 1, 50, TooManyRows},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtually(t, func(t *trackerTest) {
				v := t.shown("100:100:", shows(1, 2, 3))
				var rows []lists.Row
				for i := range test.rows {
					rows = append(rows, gone(10+i))
				}
				for i := range test.changes {
					t.changedRows(100+uint64(i), listA, rows...)
				}
				if kept := t.revalidate(v); kept != (test.want == Unconcerned) {
					t.Fatal(kept)
				}
				if n := t.Stats().Compared[test.want]; n != 1 {
					t.Errorf("%v", t.Stats().Compared)
				}
				r := t.read("100:100:") // all of them may still become visible
				if r.Extent = shows(1, 2, 3); t.admit(r, listA) != Admitted {
					t.Error("a fill that may have missed them all is not compared with them")
				}
			})
		})
	}
}

// The ring stays in its budget. The oldest change of all lists goes first.
func TestTheOldestChangesAreDropped(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		a, b := t.shown("100:100:", shows(1)), t.shown("100:100:", shows(1))
		q := t.read("100:100:")
		q.Extent = shows(1)
		if t.admit(q, listB) != Admitted {
			t.Fatal("not admitted")
		}
		t.changedRows(100, listA, gone(4)) // and listB
		size := int(unsafe.Sizeof(gone(4)))
		if r := &t.lists.ring; r.changes != 2 || r.bytes != 2*(changeSize+size) {
			t.Fatalf("%d changes of %d bytes", r.changes, r.bytes)
		}
		t.lists.ring.budget = 3 * (changeSize + size)
		t.is(a, 2)
		t.changed(101, listA) // without rows
		if r := &t.lists.ring; r.changes != 3 {
			t.Fatalf("%d changes", r.changes)
		}
		t.is(q, 2)
		t.changedRows(102, listA, gone(4))
		if r := &t.lists.ring; r.changes != 3 || r.bytes > r.budget {
			t.Fatalf("%d changes of %d bytes", r.changes, r.bytes)
		}
		t.is(q, 2) // the change before its sequence was dropped
		t.is(b, 0)
		t.invalidated(b, Forgotten, 0)
		t.is(a, 0)
		t.invalidated(a, AnyRow, 101)
	})
}

// A change that is not visible yet outlives its place in the ring: a fill that does not
// see it is not admitted, whatever rows it had.
func TestAnUnsettledChangeIsNeverLost(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		t.changedRows(100, listA, gone(4))
		read := func(snapshot string) Admission {
			v := t.read(snapshot)
			v.Extent = shows(1, 2, 3)
			return t.admit(v, listA)
		}
		if got := read("100:101:100"); got != Admitted {
			t.Fatal(got)
		}
		t.dropAll()
		if n := len(t.lists.of(listA).changes); n != 0 {
			t.Fatalf("%d changes", n)
		}
		for range 3 {
			boottimetest.Pass(10 * testFill)
			t.prove("100:101:100")
			if got := read("100:101:100"); got != NotVisible {
				t.Fatalf("a page that does not see it: %s", got)
			}
			if got := read("101:101:"); got != Admitted {
				t.Fatalf("a page that sees it: %s", got)
			}
		}
		t.prove("101:101:")
		boottimetest.Pass(testFill + 1)
		t.prove("101:101:")
		if n := len(t.lists.of(listA).recent); n != 0 {
			t.Errorf("%d recent changes", n)
		}
	})
}

// The changes of a forgotten list do not stay in its ring, and do not keep it known.
func TestForgettingAListForgetsItsChanges(t *testing.T) {
	virtually(t, func(t *trackerTest) {
		v := t.shown("100:100:", shows(1))
		for i := range 10 {
			t.changedRows(100+uint64(i), listA, createdAt(4, 99))
		}
		t.is(v, 2)
		t.maxLists = 0
		t.beat("110:110:")
		boottimetest.Pass(testFill + 1)
		t.prove("110:110:")
		if n := len(t.lists.known); n != 0 {
			t.Fatalf("%d lists", n)
		}
		t.is(v, 0)
		if r := &t.lists.ring; r.bytes != 20*changeSize { // without rows
			t.Errorf("%d bytes", r.bytes)
		}
		t.maxLists = maxLists
		t.dropAll()
		if r := &t.lists.ring; r.changes != 1 || r.bytes != changeSize || r.oldest != r.newest {
			t.Errorf("%d changes of %d bytes", r.changes, r.bytes)
		}
		t.filled("110:110:")
	})
}

// What a full ring costs in memory is what it says.
func TestMemoryOfTheRing(t *testing.T) {
	for name, row := range map[string]lists.Row{
		"rows without a text":   behind(1),
		"rows with their place": {ID: rowID(1), CreatedAt: 1, NameKey: "a name of the usual length", Text: strings.Repeat("x", 700)},
	} {
		for _, number := range []int{1, 5000} {
			t.Run(fmt.Sprintf("%s in %d lists", name, number), func(t *testing.T) {
				list := func(i int) changefeed.List {
					return changefeed.List{Workspace: uuid.UUID{byte(i), byte(i >> 8)}}
				}
				tracker := NewTracker(time.Hour, 0, &changefeed.Followed{})
				for i := range number {
					tracker.lists.of(list(i))
				}
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				for i := range 2 * ringBudget / changeSize {
					c := &changefeed.Change{XID: uint64(i), Lists: []changefeed.List{list(i % number)}, Rows: [][]lists.Row{{row}}}
					tracker.Changed(changefeed.Position{Term: 1, N: uint64(i + 1)}, c)
					tracker.Settled(c, 0)
					if i%1000 == 0 {
						tracker.ValidThrough(changefeed.Proof{}, 0, time.Duration(i+1))
					}
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				s, took := tracker.Stats(), int(after.HeapAlloc-before.HeapAlloc)
				t.Logf("%d changes: %d bytes, %d by its own account", s.RingChanges, took, s.RingBytes)
				if s.RingBytes > ringBudget || s.RingBytes < ringBudget-1000 || took > ringBudget+ringBudget/8 {
					t.Errorf("%d bytes, %d by its own account, budget %d", took, s.RingBytes, ringBudget)
				}
				runtime.KeepAlive(tracker)
			})
		}
	}
}

// Requests compare entries while changes come in.
func TestComparingWhileChanging(t *testing.T) {
	tracker := joinedTracker(1, 1)
	var requests sync.WaitGroup
	tracker.lists.ring.budget = 100 * changeSize
	stop := make(chan struct{})
	for range 4 {
		requests.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := &Validity{ReadPoint: ReadPoint{Snapshot: changefeed.Snapshot{Xmin: 1 << 40, Xmax: 1 << 40}}, Extent: shows(1)}
				if a := tracker.Admit(tracker.Begin(0, 0), v, changefeed.List{}, 0); a != Admitted {
					t.Error(a)
					return
				}
				for range 10 {
					tracker.IsFresh(v, 0)
					w := &Validity{ReadPoint: v.ReadPoint, Extent: v.Extent, Epoch: "e", Position: v.Position}
					tracker.ValidateFromRedis(w, changefeed.List{}, 0)
					tracker.Stats()
					runtime.Gosched()
				}
			}
		})
	}
	for i := range 2000 {
		n := uint64(i + 100)
		c := &changefeed.Change{XID: n, Lists: make([]changefeed.List, 1), Rows: [][]lists.Row{{behind(i)}}}
		tracker.Changed(changefeed.Position{Term: 1, N: n}, c)
		tracker.Settled(c, 0)
		runtime.Gosched()
	}
	close(stop)
	requests.Wait()
}
