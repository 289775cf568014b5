package replica_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// settled makes a heartbeat that sees all transactions up to an id, and settles changes.
func settled(n uint64, changes ...*changefeed.Change) *changefeed.Beat {
	return &changefeed.Beat{Proof: changefeed.Proof{At: changefeed.Position{Term: 1, N: n}, LSN: n, Timeline: "server", StartedAt: "run"},
		Snapshot: changefeed.Snapshot{Xmin: n + 1, Xmax: n + 1}, Followed: []*list.List{listtest.Items}, Settled: changes}
}

func changeOf(n uint64, rows ...list.Row) *changefeed.Change {
	return &changefeed.Change{XID: n, LSN: n, Touched: []changefeed.Touched{{Table: byCreatedAt.Table, Rows: rows}}}
}

var roomy = replica.Budgets{Rows: 1 << 30, Changes: 1 << 24, Parked: 1 << 24, Lists: 256}

// rowAt makes the row with a number, with values of columns: both orders of the list have them ascending.
func rowAt(i int, values ...string) list.Row {
	return listtest.Item(i, append([]string{"description", fmt.Sprintf("%0300d", i)}, values...)...)
}

func read(r *replica.Replica, k replica.Key, from, to int) *replica.Fill {
	f := &replica.Fill{Key: k, Start: r.Begin(), Read: page.Read{At: r.Begin().At}}
	if from > 0 {
		row := rowAt(from - 1)
		f.After = positionIn(&k, &row)
	}
	for i := from; i < to; i++ {
		f.Rows = append(f.Rows, rowAt(i))
	}
	return f
}

var byCreatedAt = replica.Key{Table: testTable, Order: listtest.ByCreatedAt}

func cut(t *testing.T, r *replica.Replica, k replica.Key, from, n int) (rows []*list.Row, ok bool) {
	t.Helper()
	after := list.Position("")
	if from > 0 {
		row := rowAt(from - 1)
		after = positionIn(&k, &row)
	}
	_, rows, ok = r.Read(nil, &k, after, n, 1<<20)
	return rows, ok
}

func TestWhatDoesNotAgree(t *testing.T) {
	other := rowAt(3, "sku", "other")
	for name, change := range map[string]func(f *replica.Fill){
		"another version":  func(f *replica.Fill) { f.Rows[1] = other },
		"a row is missing": func(f *replica.Fill) { f.Rows = slices.Delete(f.Rows, 1, 2) },
		"a row twice":      func(f *replica.Fill) { f.Rows = append(f.Rows, f.Rows[len(f.Rows)-1]) },
		"a key twice": func(f *replica.Fill) {
			for i := 6; i < 13; i++ {
				f.Rows = append(f.Rows, rowAt(i))
			}
			f.Rows = append(f.Rows, rowAt(13, "id", listtest.ID(12), "sku", "longer"))
		},
		"out of order":            func(f *replica.Fill) { slices.Reverse(f.Rows) },
		"a row of no such filter": func(f *replica.Fill) { f.Match = listtest.Goods },
	} {
		t.Run(name, func(t *testing.T) {
			r := replica.New(roomy)
			r.Apply(settled(1))
			if o := r.Merge(read(r, byCreatedAt, 0, 10)); o != replica.Merged {
				t.Fatal(o)
			}
			f := read(r, byCreatedAt, 2, 6)
			change(f)
			if o := r.Merge(f); o != replica.Inconsistent {
				t.Error(o)
			}
			if s := r.Stats(); s.Bytes != 0 || s.Tables != 0 || s.Fills[replica.Inconsistent] != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// ALTER TABLE changes all rows and names none. It commits after the snapshot of heartbeat 5 was
// taken, and before its LSN was read; a standby shows it at once. The next snapshot sees it.
func TestAnALTERTABLEThatAStandbyShowsFirst(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(4))
	if o := r.Merge(read(r, byCreatedAt, 0, 5)); o != replica.Merged {
		t.Fatal(o)
	}
	r.Apply(settled(5))
	f := &replica.Fill{Key: byCreatedAt, Start: r.Begin(), Read: page.Read{End: true, At: changefeed.ReadPoint{Timeline: "server", LSN: 5, Through: 5}}}
	for i := range 10 {
		f.Rows = append(f.Rows, rowAt(i, "sku", "altered"))
	}
	if o := r.Merge(f); o != replica.Parked {
		t.Error(o)
	}
	if rows, ok := cut(t, r, byCreatedAt, 0, 4); !ok || *rows[3] != rowAt(3) {
		t.Error("a page is a mixture")
	}
	altered := &changefeed.Change{XID: 6, LSN: 6, Touched: []changefeed.Touched{changefeed.AllRowsOf(byCreatedAt.Table.List)}}
	r.Apply(settled(6, altered))
	if f.Outcome() != replica.AnyRow {
		t.Error(f.Outcome())
	}
}

func TestPagesAreCutByBytes(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	r.Merge(read(r, byCreatedAt, 0, 10))
	row := rowAt(0)
	size := len(row.Text())
	for name, test := range map[string]struct {
		bytes, rows int
	}{"one, however long": {1, 1}, "two": {2 * size, 2}, "not quite three": {3*size - 1, 2}} {
		t.Run(name, func(t *testing.T) {
			p, rows, ok := r.Read(nil, &byCreatedAt, "", 5, test.bytes)
			if len(rows) != test.rows || !p.More || !ok {
				t.Errorf("%d rows, more %t, ok %t", len(rows), p.More, ok)
			}
		})
	}
}

// A page needs the row behind it, or the end of the list.
func TestWhatRangesDoNotHave(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	r.Merge(read(r, byCreatedAt, 10, 20))
	r.Merge(read(r, byCreatedAt, 20, 30))
	r.Merge(read(r, byCreatedAt, 40, 50))
	for name, test := range map[string]struct {
		from, n, rows int
		ok            bool
	}{
		"inside":               {12, 5, 5, true},
		"across two ranges":    {12, 17, 17, true},
		"to the gap":           {12, 18, 18, false},
		"before all":           {5, 5, 0, false},
		"in the gap":           {35, 5, 0, false},
		"at the end of all":    {50, 5, 0, false},
		"to the end of all":    {45, 5, 5, false},
		"at the end of ranges": {30, 5, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if rows, ok := cut(t, r, byCreatedAt, test.from, test.n); ok != test.ok || len(rows) != test.rows {
				t.Errorf("%d rows, ok %t", len(rows), ok)
			}
		})
	}
}

func TestWhatIsUsedIsKept(t *testing.T) {
	for name, use := range map[string]func(r *replica.Replica, p replica.Page){
		"read":    func(r *replica.Replica, _ replica.Page) { cut(t, r, byCreatedAt, 10, 50) },
		"touched": func(_ *replica.Replica, p replica.Page) { p.Last.Touch() },
	} {
		t.Run(name, func(t *testing.T) {
			budget := roomy
			budget.Rows = 300_000 // of 20 ranges, each has more than 50,000 bytes
			r := replica.New(budget)
			r.Apply(settled(1))
			r.Merge(read(r, byCreatedAt, 0, 100))
			p, _, _ := r.Read(nil, &byCreatedAt, "", 50, 1<<20)
			for from := 100; from < 2000; from += 100 {
				if o := r.Merge(read(r, byCreatedAt, from, from+100)); o != replica.Merged {
					t.Fatal(o)
				}
				use(r, p)
			}
			if _, ok := cut(t, r, byCreatedAt, 10, 50); !ok {
				t.Error("the range that was used is given up")
			}
			if s := r.Stats(); s.Bytes > budget.Rows || s.Ranges < 2 {
				t.Errorf("%+v", s)
			}
		})
	}
	t.Run("a list", func(t *testing.T) {
		budget := roomy
		budget.Lists = 3
		r := replica.New(budget)
		r.Apply(settled(1))
		key := func(i int) replica.Key { return replica.Key{Table: byCreatedAt.Table, Search: fmt.Sprint(i)} }
		for i := range 20 {
			f := read(r, key(i), 0, 10)
			f.Search = fmt.Sprint(i)
			r.Merge(f)
			cut(t, r, key(0), 0, 5)
		}
		if _, ok := cut(t, r, key(0), 0, 5); !ok || r.Stats().Lists != 3 {
			t.Errorf("%+v, the list that is read: %t", r.Stats(), ok)
		}
	})
}

// A transaction changes two rows. Pages that are read meanwhile show both or none, and one
// that the list's version says is current shows the last.
func TestPagesShowNoHalfTransaction(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	f := read(r, byCreatedAt, 0, 50)
	version := func(i int, n uint64) list.Row { return rowAt(i, "sku", fmt.Sprintf("%020d", n)) }
	versionOf := func(row *list.Row) string {
		_, rest, _ := strings.Cut(row.Text(), `"sku":"`)
		return rest[:20]
	}
	f.Rows[3], f.Rows[30] = version(3, 1), version(30, 1)
	r.Merge(f)
	var readers sync.WaitGroup
	var applied atomic.Uint64
	for range 2 {
		readers.Go(func() {
			for dst := []*list.Row(nil); applied.Load() < 2000; {
				before := applied.Load()
				p, rows, ok := r.Read(dst[:0], &byCreatedAt, "", 40, 1<<20)
				a, b := versionOf(rows[3]), versionOf(rows[30])
				if !ok || a != b || p.List.Version() == p.Version && a < fmt.Sprintf("%020d", before) {
					t.Errorf("%t, %q and %q after %d", ok, a, b, before)
					return
				}
				dst = rows
			}
		})
	}
	for n := uint64(2); n <= 2001; n++ {
		r.Apply(settled(n, changeOf(n, version(3, n), version(30, n))))
		applied.Store(n)
	}
	readers.Wait()
}

// heap returns the bytes that are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// What a row takes in memory is what the budget counts.
func TestMemory(t *testing.T) {
	const rows = 50_000
	before := heap()
	r := replica.New(roomy)
	r.Apply(settled(1))
	for from := 0; from < rows; from += 50 {
		r.Merge(read(r, byCreatedAt, from, from+50))
	}
	took := heap() - before
	counted := r.Stats().Bytes
	t.Logf("%d bytes a row, %d counted", took/rows, counted/rows)
	if ratio := float64(took) / float64(counted); ratio < 0.8 || ratio > 1.1 {
		t.Errorf("the heap has %.2f times what is counted", ratio)
	}
	runtime.KeepAlive(r)
}

// A fill takes what changes left as it was from the change before, and else from its own rows or those
// that the state has.
func TestWhatChangesLeaveIsOfTheVersionBefore(t *testing.T) {
	renamed := listtest.Item(1, "name", "z", "description", "d")
	stock := listtest.Item(1, "name", listtest.Unsent, "sku", "s", "description", listtest.Unsent)
	written := listtest.Item(1, "name", listtest.Unsent, "description", "e")
	byName := byCreatedAt
	byName.Order = listtest.ByName
	for _, c := range []struct {
		name    string
		changes []list.Row
		want    list.Row // Gone = the fill is refused
	}{
		{"of its own rows", []list.Row{stock}, rowAt(1, "sku", "s")},
		{"of another change", []list.Row{renamed, stock}, listtest.Item(1, "name", "z", "sku", "s", "description", "d")},
		{"of all changes", []list.Row{stock, renamed, stock, written}, listtest.Item(1, "name", "z", "description", "e")},
		{"of a row that was gone", []list.Row{list.GoneRow(renamed.Key()), stock}, list.GoneRow(renamed.Key())},
	} {
		for _, held := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, held %t", c.name, held), func(t *testing.T) {
				r := replica.New(roomy)
				r.Apply(settled(1))
				f := read(r, byName, 0, 3)
				f.End = true
				if held {
					own := read(r, byCreatedAt, 0, 3)
					own.End = true
					r.Merge(own)
				}
				for i, row := range c.changes {
					n := uint64(i + 2)
					r.Apply(settled(n, changeOf(n, row)))
				}
				want := replica.Merged
				if c.want.State == list.Gone {
					want = replica.AnyRow
				}
				if o := r.Merge(f); o != want {
					t.Fatal(o)
				}
				rows, ok := cut(t, r, byName, 0, 9)
				found := slices.ContainsFunc(rows, func(row *list.Row) bool { return *row == c.want })
				if ok != (want == replica.Merged) || ok && !found {
					t.Errorf("%v, %v", rows, ok)
				}
			})
		}
	}
}

func TestAFillOfAnotherRunIsRefused(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	f := read(r, byCreatedAt, 0, 5)
	f.At.StartedAt = "another run"
	if o := r.Merge(f); o != replica.WrongServer {
		t.Error(o)
	}
}

// A range that has grown is cut at a row, which belongs to the second part.
func TestRowsAtTheBoundsOfRanges(t *testing.T) {
	budget := roomy
	budget.Range = 4
	r := replica.New(budget)
	r.Apply(settled(1))
	f := read(r, byCreatedAt, 0, 1)
	f.End = true
	r.Merge(f)
	const rows = 20
	n := uint64(1)
	change := func(row list.Row, want int) {
		n++
		r.Apply(settled(n, changeOf(n, row)))
		got, ok := cut(t, r, byCreatedAt, 0, 2*rows)
		if len(got) != want || !ok {
			t.Fatalf("%d rows, ok %t, want %d", len(got), ok, want)
		}
	}
	for i := 1; i < rows; i++ {
		change(rowAt(i), i+1)
	}
	if s := r.Stats(); s.Ranges < rows/4 {
		t.Errorf("%d ranges", s.Ranges)
	}
	for i := range rows {
		change(list.GoneRow(listtest.Key(listtest.ID(i))), rows-1-i)
	}
}
