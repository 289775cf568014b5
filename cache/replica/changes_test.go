package replica_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

func tableOfTenant(n int) changefeed.Table {
	return changefeed.Table{List: listtest.Items, Tenant: fmt.Sprint("tenant ", n)}
}

// touched are changes of rows of a table; of a negative one the row is gone.
func touched(of changefeed.Table, rows ...int) changefeed.Touched {
	t := changefeed.Touched{Table: of}
	for _, n := range rows {
		if n < 0 {
			t.Rows = append(t.Rows, list.GoneRow(listtest.Key(listtest.ID(-n))))
			continue
		}
		t.Rows = append(t.Rows, listtest.Item(n))
	}
	return t
}

// Of more tables than there is room for, nothing is said that is not known. What is remembered stays within its budget.
func TestTooManyTablesAreNotKnown(t *testing.T) {
	const tables, budget = 500, 20_000
	r := replica.New(replica.Budgets{Rows: 1 << 30, IDs: budget, Lists: 16})
	r.Apply(settled(1))
	known := func(of int) bool {
		c := r.Changes(tableOfTenant(of), changefeed.EndOf(changefeed.Position{Term: 1, N: 1}), math.MaxInt)
		if c.Lack == replica.Complete && len(c.Rows) != 1 {
			t.Fatalf("table %d: %d rows", of, len(c.Rows))
		}
		return c.Lack == replica.Complete
	}
	for n := range tables {
		at := uint64(n + 2)
		r.Apply(settled(at, &changefeed.Change{XID: at, LSN: at, Touched: []changefeed.Touched{touched(tableOfTenant(n), 1)}}))
		if err := r.Consistent(); err != nil || r.Stats().IDBytes > budget {
			t.Fatalf("%v; %d bytes", err, r.Stats().IDBytes)
		}
		if n < 20 && !known(n) {
			t.Errorf("table %d is not known, though there is room", n)
		}
	}
	for n := range tables {
		if known(n) {
			t.Errorf("table %d is known since the beginning", n)
		}
	}
}

// The many changes of one tenant cost no other what is known of its rows.
func TestTheLargestTableForgets(t *testing.T) {
	r := replica.New(replica.Budgets{Rows: 1 << 30, IDs: 200_000, Lists: 16})
	b := settled(1)
	b.Moment = time.Unix(1, 0)
	r.Apply(b)
	small, large := tableOfTenant(1), tableOfTenant(2)
	for n := uint64(2); n < 3000; n++ {
		b := settled(n, &changefeed.Change{XID: n, LSN: n, Touched: []changefeed.Touched{touched(large, int(n), int(n)+5000)}})
		if n < 100 {
			b.Settled[0].Touched = append(b.Settled[0].Touched, touched(small, int(n)))
		}
		b.Moment = time.Unix(int64(n), 0)
		r.Apply(b)
		if err := r.Consistent(); n%50 == 0 && err != nil || r.Stats().IDBytes > 200_000 {
			t.Fatalf("%v; %d bytes", err, r.Stats().IDBytes)
		}
	}
	start := changefeed.EndOf(changefeed.Position{Term: 1, N: 1})
	if c := r.Changes(small, start, math.MaxInt); c.Lack != replica.Complete || len(c.Rows) != 98 {
		t.Errorf("of the small table %d rows are known, %d", len(c.Rows), c.Lack)
	}
	if c := r.Changes(large, start, 1); c.Lack != replica.TooMany {
		t.Errorf("of the large table is known: %d", c.Lack)
	}
	if c := r.Changes(tableOfTenant(3), start, 1); c.Lack != replica.Complete || len(c.Rows) > 0 || c.More {
		t.Errorf("a table without a change: %+v", c)
	}
	for n := 2; n < 3000; n++ { // wherever it says that all is known, it knows all
		for ordinal := range 3 {
			behind := changefeed.Point{At: changefeed.Position{Term: 1, N: uint64(n)}, Ordinal: uint32(ordinal)}
			if c := r.Changes(large, behind, math.MaxInt); c.Lack == replica.Complete && len(c.Rows) != 2*(3000-n)-ordinal {
				t.Fatalf("%d rows are known behind %v", len(c.Rows), behind)
			}
		}
	}
	s := r.Stats()
	horizon := changefeed.EndOf(changefeed.Position{Term: 1, N: uint64(s.Horizon.Unix())})
	if c := r.Changes(large, horizon, 1); c.Lack != replica.Complete || s.Horizon.Unix() < 1000 || s.IDs < 1000 {
		t.Errorf("behind the horizon, %v, nothing is known: %d; %d ids", s.Horizon.Unix(), c.Lack, s.IDs)
	}
	r.Apply(settled(3000, &changefeed.Change{XID: 3000, LSN: 3000, Touched: []changefeed.Touched{changefeed.AllRowsOf(listtest.Items)}}))
	if c := r.Changes(small, horizon, 1); c.Lack != replica.Unnamed || r.Stats().IDs != 0 {
		t.Errorf("after a change without names is known: %d, %d ids", c.Lack, r.Stats().IDs)
	}
	r.Reset("another")
	if c := r.Changes(small, horizon, 1); c.Start.Follows(listtest.Items) || !r.Stats().Horizon.IsZero() || !c.Start.Proven.IsZero() {
		t.Errorf("without a state: %+v", c)
	}
	r.Apply(settled(3001))
	if c := r.Changes(small, horizon, 1); c.Lack != replica.NotJoined || c.Start.Epoch != "another" {
		t.Errorf("after a reset is known: %d in epoch %q", c.Lack, c.Start.Epoch)
	}
}

// A node that starts knows by a checkpoint which tables have not changed, also before its part of the log, and of no other table
// more than without one.
func TestACheckpointSaysWhatHasNotChanged(t *testing.T) {
	started := func(at uint64, c *changefeed.Checkpoint) *replica.Replica {
		r := replica.New(replica.Budgets{Rows: 1 << 30, IDs: 1 << 20, Lists: 16})
		r.Reset("epoch")
		b := settled(at)
		b.Checkpoint = c
		if at == 16 {
			b.Followed = append(b.Followed, listtest.Contacts)
		}
		r.Apply(b)
		return r
	}
	changes := func(r *replica.Replica, n uint64, of changefeed.Touched, c *changefeed.Checkpoint) {
		b := settled(n, &changefeed.Change{XID: n, LSN: n, Touched: []changefeed.Touched{of}})
		b.Checkpoint = c
		r.Apply(b)
	}
	early, late, never := tableOfTenant(1), tableOfTenant(2), tableOfTenant(3)
	first := started(1, nil)
	changes(first, 5, touched(early, 1), nil)
	changes(first, 20, touched(late, 1), nil)
	c := first.Checkpoint()
	foreign := *c
	foreign.Epoch = "another"
	if replica.New(replica.Budgets{}).Checkpoint() != nil {
		t.Error("a checkpoint without a state")
	}

	second := started(15, c)
	second.Apply(settled(30))
	after := started(15, nil) // it reads the checkpoint later
	changes(after, 18, changefeed.AllRowsOf(listtest.Items), nil)
	changes(after, 20, touched(late, 1), nil)
	changes(after, 25, touched(early, 1), c)

	for _, is := range []struct {
		name   string
		node   *replica.Replica
		of     changefeed.Table
		behind uint64
		lack   replica.Lack
		rows   int
	}{
		{"no change", second, never, 1, replica.Complete, 0},
		{"no change since", second, early, 5, replica.Complete, 0},
		{"a change since", second, early, 4, replica.NotJoined, 0},
		{"a change in its part of the log", second, late, 14, replica.NotJoined, 0},
		{"before the checkpoint's beginning", second, never, 0, replica.NotJoined, 0},
		{"a gap", started(21, c), never, 1, replica.NotJoined, 0},
		{"no gap", started(20, c), never, 1, replica.Complete, 0},
		{"another epoch", started(15, &foreign), never, 1, replica.NotJoined, 0},
		{"a list that it does not cover", started(16, c), changefeed.Table{List: listtest.Contacts, Tenant: "a"}, 15, replica.NotJoined, 0},
		{"the same, later", started(16, c), changefeed.Table{List: listtest.Contacts, Tenant: "a"}, 16, replica.Complete, 0},
		{"a list that it covers beside it", started(16, c), never, 1, replica.Complete, 0},
		{"of a node that had one", started(28, second.Checkpoint()), early, 5, replica.Complete, 0},
		{"the same, a change since", started(28, second.Checkpoint()), early, 4, replica.NotJoined, 0},
		{"read later", after, never, 1, replica.Complete, 0},
		{"read later than a change of its part", after, late, 18, replica.Complete, 1},
		{"the same, of before", after, late, 17, replica.Unnamed, 0},
		{"read with a change", after, early, 24, replica.Complete, 1},
		{"the same, since", after, early, 25, replica.Complete, 0},
	} {
		got := is.node.Changes(is.of, changefeed.EndOf(changefeed.Position{Term: 1, N: is.behind}), math.MaxInt)
		if got.Lack != is.lack || len(got.Rows) != is.rows {
			t.Errorf("%s: lack %d, %d rows; want %d, %d", is.name, got.Lack, len(got.Rows), is.lack, is.rows)
		}
	}
}

// What an id takes in memory is what the budget counts, also after ids have changed again and again.
func TestMemoryOfChanges(t *testing.T) {
	for _, c := range []struct{ tables, rows, rounds int }{{1, 30_000, 1}, {1, 30_000, 3}, {4000, 5, 1}, {4000, 1, 2}} {
		random := rand.New(rand.NewPCG(1, 2))
		before := heap()
		r := replica.New(replica.Budgets{Rows: 1 << 30, IDs: 1 << 30, Lists: 16})
		r.Apply(settled(1))
		n := uint64(1)
		for range c.rounds {
			for _, row := range random.Perm(c.tables * c.rows) {
				n++
				r.Apply(settled(n, &changefeed.Change{XID: n, LSN: n, Touched: []changefeed.Touched{touched(tableOfTenant(row%c.tables), -1-row/c.tables)}}))
			}
		}
		took, s := heap()-before, r.Stats()
		ratio := float64(took) / float64(s.IDBytes)
		t.Logf("%+v: %d bytes an id, %d counted", c, took/uint64(s.IDs), s.IDBytes/s.IDs)
		if ratio < 0.6 || ratio > 1.15 {
			t.Errorf("%+v: the heap has %.2f times what is counted", c, ratio)
		}
		runtime.KeepAlive(r)
	}

	// Tables that had many ids, one after the other.
	before := heap()
	r := replica.New(replica.Budgets{Rows: 1 << 30, IDs: 4 << 20, Lists: 16})
	r.Apply(settled(1))
	n := uint64(1)
	for table := range 20 {
		for id := range 25_000 {
			n++
			r.Apply(settled(n, &changefeed.Change{XID: n, LSN: n, Touched: []changefeed.Touched{touched(tableOfTenant(table), -1-id)}}))
		}
	}
	if took := heap() - before; took > 2*4<<20 {
		t.Errorf("%d bytes, %d counted", took, r.Stats().IDBytes)
	}
	runtime.KeepAlive(r)
}
