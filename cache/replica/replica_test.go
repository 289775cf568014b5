package replica_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/internal/page"
)

// settled makes a heartbeat that sees all transactions up to an id, and settles changes.
func settled(n uint64, changes ...*changefeed.Change) *changefeed.Beat {
	return &changefeed.Beat{Proof: changefeed.Proof{At: changefeed.Position{Term: 1, N: n}, LSN: n, Timeline: "server", StartedAt: "run"},
		Snapshot: changefeed.Snapshot{Xmin: n + 1, Xmax: n + 1}, Settled: changes}
}

func changeOf(n uint64, rows ...lists.Row) *changefeed.Change {
	return &changefeed.Change{XID: n, LSN: n, Lists: []changefeed.Touched{{List: byCreatedAt.Table, Rows: rows}}}
}

var roomy = replica.Budgets{Rows: 1 << 30, Changes: 1 << 24, Parked: 1 << 24, Lists: 256}

// rowAt makes the row with a number: the list by createdAt has them ascending.
func rowAt(i int) lists.Row {
	name := fmt.Sprintf("item %06d", i)
	row := lists.Row{ID: uuid.UUID{12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}, CreatedAt: int64(-i)}
	return *row.SetTexts(lists.NameKey(name), fmt.Sprintf(`{"id":"%d","name":%q,"sku":null,"description":"%0300d"}`, i, name, i))
}

func read(r *replica.Replica, k replica.Key, from, to int) *replica.Fill {
	f := &replica.Fill{Key: k, Start: r.Begin(), Read: page.Read{At: r.Begin().At}}
	if from > 0 {
		row := rowAt(from - 1)
		f.After = row.Position(k.Order)
	}
	for i := from; i < to; i++ {
		f.Rows = append(f.Rows, rowAt(i))
	}
	return f
}

var byCreatedAt = replica.Key{Table: changefeed.List{Workspace: uuid.UUID{1}, Collection: lists.Items}, Order: lists.ByCreatedAt}

func cut(t *testing.T, r *replica.Replica, k replica.Key, from, n int) (rows []*lists.Row, ok bool) {
	t.Helper()
	after := lists.Position("")
	if from > 0 {
		row := rowAt(from - 1)
		after = row.Position(k.Order)
	}
	_, rows, ok = r.Read(nil, &k, after, n, 1<<20)
	return rows, ok
}

func TestWhatDoesNotAgree(t *testing.T) {
	other := rowAt(3)
	other.SetTexts(other.NameKey(), `{"name":"other"}`)
	for name, change := range map[string]func(f *replica.Fill){
		"another version":         func(f *replica.Fill) { f.Rows[1] = other },
		"a row is missing":        func(f *replica.Fill) { f.Rows = slices.Delete(f.Rows, 1, 2) },
		"a row twice":             func(f *replica.Fill) { f.Rows = append(f.Rows, f.Rows[len(f.Rows)-1]) },
		"out of order":            func(f *replica.Fill) { slices.Reverse(f.Rows) },
		"a row of no such filter": func(f *replica.Fill) { f.Filter = lists.Goods },
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
		row := rowAt(i)
		f.Rows = append(f.Rows, *row.SetTexts(row.NameKey(), `{"name":"altered"}`))
	}
	if o := r.Merge(f); o != replica.Parked {
		t.Error(o)
	}
	if rows, ok := cut(t, r, byCreatedAt, 0, 4); !ok || *rows[3] != rowAt(3) {
		t.Error("a page is a mixture")
	}
	altered := &changefeed.Change{XID: 6, LSN: 6, Lists: []changefeed.Touched{changefeed.AllRowsOf(byCreatedAt.Table.Collection)}}
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
		key := func(i int) replica.Key { return replica.Key{byCreatedAt.Table, lists.ByCreatedAt, 0, fmt.Sprint(i)} }
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
	f.Rows[3].SetTexts("", fmt.Sprintf("%020d of 0", 1))
	f.Rows[30].SetTexts("", fmt.Sprintf("%020d of 1", 1))
	r.Merge(f)
	var readers sync.WaitGroup
	var applied atomic.Uint64
	for range 2 {
		readers.Go(func() {
			for dst := []*lists.Row(nil); applied.Load() < 2000; {
				before := applied.Load()
				p, rows, ok := r.Read(dst[:0], &byCreatedAt, "", 40, 1<<20)
				a, b := rows[3].Text(), rows[30].Text()
				if !ok || a[:20] != b[:20] || p.List.Version() == p.Version && a[:20] < fmt.Sprintf("%020d", before) {
					t.Errorf("%t, %q and %q after %d", ok, a, b, before)
					return
				}
				dst = rows
			}
		})
	}
	for n := uint64(2); n <= 2001; n++ {
		rows := []lists.Row{rowAt(3), rowAt(30)}
		for i := range rows {
			rows[i].SetTexts("", fmt.Sprintf("%020d of %d", n, i))
		}
		r.Apply(settled(n, changeOf(n, rows...)))
		applied.Store(n)
	}
	readers.Wait()
}

// What a row takes in memory is what the budget counts.
func TestMemory(t *testing.T) {
	const rows = 50_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
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
	partial := func(text string) lists.Row {
		row := lists.Row{ID: rowAt(1).ID, CreatedAt: -1, State: lists.PlaceUnknown}
		return *row.SetTexts("", text)
	}
	renamed := rowAt(1)
	renamed.SetTexts(lists.NameKey("z"), `{"id":"1","name":"z","sku":null,"description":"d"}`)
	stock := partial(`,"id":"1","name":,"sku":"s","description":}`)
	byName := byCreatedAt
	byName.Order = lists.ByName
	for _, c := range []struct {
		name    string
		changes []lists.Row
		want    string
	}{
		{"of its own rows", []lists.Row{stock}, fmt.Sprintf(`{"id":"1","name":"item 000001","sku":"s","description":"%0300d"}`, 1)},
		{"of another change", []lists.Row{renamed, stock}, `{"id":"1","name":"z","sku":"s","description":"d"}`},
		{"of all changes", []lists.Row{stock, renamed, stock, partial(`,"id":"1","name":,"sku":null,"description":"e"}`)},
			`{"id":"1","name":"z","sku":null,"description":"e"}`},
		{"of a row that was gone", []lists.Row{{ID: renamed.ID, State: lists.Gone}, stock}, ""},
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
				if c.want == "" {
					want = replica.AnyRow
				}
				if o := r.Merge(f); o != want {
					t.Fatal(o)
				}
				rows, ok := cut(t, r, byName, 0, 9)
				found := slices.ContainsFunc(rows, func(row *lists.Row) bool { return row.Text() == c.want })
				if ok != (c.want != "") || ok && !found {
					t.Errorf("%v, %v", rows, ok)
				}
			})
		}
	}
}
