package replica_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"listedge/cache/replica"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// ofItemsVerified is what was verified of the list of the tests.
func ofItemsVerified(r *replica.Replica) replica.Verified {
	return r.Stats().Verified[byCreatedAt.Table.List.Name]
}

func TestAVerificationComparesAndAddsNothing(t *testing.T) {
	another := rowAt(5, "sku", "other")
	for name, c := range map[string]struct {
		from, to int
		change   func(f *replica.Fill)
		pages    uint64
		kind     string // of the mismatch; empty = there is none
		held     bool   // the row is held, and the database has it
		database bool
	}{
		"the same":               {from: 3, to: 8, pages: 1},
		"from the start":         {from: 0, to: 8, pages: 1},
		"partly held":            {from: 6, to: 15, pages: 1},
		"across a gap":           {from: 6, to: 25, pages: 1},
		"in a gap":               {from: 12, to: 15},
		"another version":        {from: 3, to: 8, change: func(f *replica.Fill) { f.Rows[2] = another }, kind: replica.Rows, held: true, database: true},
		"a row too many is held": {from: 3, to: 8, change: func(f *replica.Fill) { f.Rows = slices.Delete(f.Rows, 2, 3) }, kind: replica.Rows, held: true},
		"all rows are too many":  {from: 3, to: 3, change: func(f *replica.Fill) { f.End = true }, kind: replica.Rows, held: true},
		"a row is not held": {from: 3, to: 8, change: func(f *replica.Fill) {
			f.Rows = slices.Insert(f.Rows, 3, rowAt(5, "id", "ffffffff-0000-4000-8000-000000000005"))
		}, kind: replica.Rows, database: true},
		"another version behind a gap": {from: 12, to: 25, change: func(f *replica.Fill) { f.Rows[10] = rowAt(22, "sku", "other") },
			kind: replica.Rows, held: true, database: true},
		"another version in a gap": {from: 12, to: 15, change: func(f *replica.Fill) { f.Rows[1] = rowAt(13, "sku", "other") }},
		"out of order":             {from: 3, to: 8, change: func(f *replica.Fill) { slices.Reverse(f.Rows) }, kind: replica.Rows, database: true},
		"folded otherwise": {from: 3, to: 8, change: func(f *replica.Fill) { f.Misfold = &page.Misfold{Row: f.Rows[1], Node: "A", Database: "B"} },
			kind: replica.Folds, held: true, database: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := replica.New(roomy)
			r.Apply(settled(1))
			for _, from := range []int{0, 20} {
				if o := r.Merge(read(r, byCreatedAt, from, from+10)); o != replica.Merged {
					t.Fatal(o)
				}
			}
			before := r.Stats()
			f := read(r, byCreatedAt, c.from, c.to)
			f.Verifies = true
			if c.change != nil {
				c.change(f)
			}
			o, s := r.Merge(f), r.Stats()
			v := ofItemsVerified(r)
			m := r.Mismatch()
			switch {
			case v.Pages != c.pages:
				t.Errorf("%d pages were verified, want %d", v.Pages, c.pages)
			case c.kind == "" && (o != replica.Merged || s.Rows != before.Rows || s.Ranges != before.Ranges || s.Bytes != before.Bytes || m != nil):
				t.Errorf("%v, %+v, before %+v, %+v", o, s, before, m)
			case c.kind != "" && (o != replica.Inconsistent || s.Tables != 0 || v.Mismatches[c.kind] != 1 || m == nil || r.Mismatch() != nil):
				t.Errorf("%v, %+v, %+v, %+v", o, s, v, m)
			case c.kind != "" && (m.Kind != c.kind || m.Table != byCreatedAt.Table || m.Position == list.Digest{} ||
				m.Held != list.Digest{} != c.held || m.Database != list.Digest{} != c.database || c.held && c.database && m.Held == m.Database):
				t.Errorf("%+v", m)
			}
		})
	}
}

// A fill that no verification asked for is compared, too.
func TestOtherFillsThatDifferAreCounted(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	if len(ofItemsVerified(r).Mismatches) != 2 {
		t.Error("what has not happened is not counted as 0")
	}
	r.Merge(read(r, byCreatedAt, 0, 10))
	f := read(r, byCreatedAt, 3, 8)
	f.Rows[2] = rowAt(5, "sku", "other")
	r.Merge(f)
	if v := ofItemsVerified(r); v.Pages != 0 || v.Mismatches[replica.Rows] != 1 || r.Mismatch() == nil {
		t.Errorf("%+v", v)
	}
}

// What is given up while a verification is under way is not read again by it.
func TestAVerificationOfWhatIsGivenUp(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	r.Merge(read(r, byCreatedAt, 0, 10))
	f := read(r, byCreatedAt, 0, 10)
	f.Verifies = true
	r.Reset("")
	r.Apply(settled(1))
	of := read(r, byCreatedAt, 0, 10)
	of.Verifies = true
	if o := r.Merge(f); o != replica.Resynced {
		t.Error(o)
	}
	if o := r.Merge(of); o != replica.Merged || r.Stats().Tables != 0 || ofItemsVerified(r).Pages != 0 {
		t.Errorf("%v, %+v", o, r.Stats())
	}
}

// What is read of one list is compared with what others hold.
func TestAVerificationComparesOtherLists(t *testing.T) {
	byName, ofServices := byCreatedAt, byCreatedAt
	byName.Order, ofServices.Match = listtest.ByName, listtest.Services
	lacking := func(f *replica.Fill) { f.Rows = slices.Delete(f.Rows, 5, 6) }
	for name, c := range map[string]struct {
		other          replica.Key
		before, change func(f *replica.Fill) // of the fill of the other list, and of the verification
		mismatches     uint64
		held, database bool
	}{
		"the same": {other: byName},
		"another version, out of there": {other: byName, change: func(f *replica.Fill) { f.Rows[2] = rowAt(5, "sku", "other") },
			mismatches: 1, held: true, database: true},
		"a row that the other lacks": {other: byName, before: lacking, mismatches: 1, database: true},
		"a row of no such filter":    {other: ofServices, before: func(f *replica.Fill) { f.Rows, f.End = nil, true }},
		"a row of a filter that the other lacks": {other: ofServices, before: func(f *replica.Fill) { f.Rows, f.End = nil, true },
			change: func(f *replica.Fill) { f.Rows[2] = rowAt(15, "type", "SERVICE") }, mismatches: 1, database: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := replica.New(roomy)
			r.Apply(settled(1))
			other := read(r, c.other, 0, 10)
			if c.before != nil {
				c.before(other)
			}
			r.Merge(other)
			for _, from := range []int{0, 20} { // between these is a gap, into which the verification reaches
				if o := r.Merge(read(r, byCreatedAt, from, from+3)); o != replica.Merged {
					t.Fatal(o)
				}
			}
			f := read(r, byCreatedAt, 3, 8)
			if c.other == ofServices {
				f = read(r, byCreatedAt, 13, 21)
			}
			f.Verifies = true
			if c.change != nil {
				c.change(f)
			}
			r.Merge(f)
			v, m := ofItemsVerified(r), r.Mismatch()
			if v.Mismatches[replica.Rows] != c.mismatches || c.mismatches > 0 && (m.Held != list.Digest{} != c.held || m.Database != list.Digest{} != c.database) {
				t.Errorf("%+v, %+v", v, m)
			}
		})
	}
}

// Each row of each table is verified in time, whether it changes or not.
func TestEachRowIsPicked(t *testing.T) {
	r := replica.New(roomy)
	if _, _, ok := r.Pick(); ok {
		t.Error("something is picked of nothing")
	}
	r.Apply(settled(1))
	small := byCreatedAt
	small.Table.Tenant = "small"
	left := map[replica.Key]map[list.Position]bool{}
	for k, ranges := range map[replica.Key]int{byCreatedAt: 20, small: 1} {
		left[k] = map[list.Position]bool{}
		for i := range ranges { // of 290 rows, which are cut in two when one changes, with a gap behind
			if o := r.Merge(read(r, k, 300*i, 300*i+290)); o != replica.Merged {
				t.Fatal(o)
			}
			for n := range 290 {
				row := rowAt(300*i + n)
				left[k][positionIn(&k, &row)] = true
			}
		}
	}
	r.Apply(settled(2, changeOf(2, rowAt(12, "sku", "other"), rowAt(3045, "sku", "other"))))
	for picks := 1; len(left[small])+len(left[byCreatedAt]) > 0; picks++ {
		k, after, ok := r.Pick()
		if !ok || picks > 2+(21+2)*7 { // of the changed rows; 50 rows of each range are for a turn
			t.Fatalf("%d picks, %d and %d rows are not verified", picks, len(left[small]), len(left[byCreatedAt]))
		}
		_, rows, _ := r.Read(nil, &k, after, page.MaxLimit, 1<<30)
		for _, row := range rows {
			delete(left[k], positionIn(&k, row))
		}
	}
}

// The last change of each kind is verified soon, however many of another kind come after it.
func TestChangedRowsArePicked(t *testing.T) {
	byName, ofGoods := byCreatedAt, byCreatedAt
	byName.Order, ofGoods.Match = listtest.ByName, listtest.Goods
	type place struct {
		in  []replica.Key // of one of these
		row list.Row
	}
	anywhere := []replica.Key{byCreatedAt, byName}
	moved, another := rowAt(234, "name", "Row 500700 moved", "type", "SERVICE"), rowAt(234, "id", listtest.ID(99_999), "type", "SERVICE")
	for name, c := range map[string]struct {
		change list.Row
		want   []place
	}{
		"it is gone":                 {list.GoneRow(listtest.Key(listtest.ID(234))), []place{{anywhere, rowAt(234)}}},
		"it has come":                {another, []place{{anywhere, another}}},
		"it stands elsewhere":        {moved, []place{{anywhere[1:], rowAt(234)}, {anywhere[1:], moved}}},
		"a filter begins to keep it": {rowAt(234, "type", "GOODS"), []place{{[]replica.Key{ofGoods}, rowAt(234)}}},
		"it has another text":        {rowAt(234, "type", "SERVICE", "sku", "other"), []place{{anywhere, rowAt(234)}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := replica.New(roomy)
			r.Apply(settled(1))
			for from := 0; from < 1000; from += 100 {
				for _, k := range anywhere {
					f := read(r, k, from, from+100)
					for i := range f.Rows {
						f.Rows[i] = rowAt(from+i, "type", "SERVICE")
					}
					r.Merge(f)
				}
			}
			r.Merge(&replica.Fill{Key: ofGoods, Start: r.Begin(), Read: page.Read{At: r.Begin().At, End: true}})
			r.Apply(settled(2, changeOf(2, c.change)))
			for n := range 60 {
				r.Apply(settled(uint64(3+n), changeOf(uint64(3+n), rowAt(500+n, "type", "SERVICE", "sku", "later"))))
			}
			left := c.want
			for picks := 0; len(left) > 0; picks++ {
				k, after, ok := r.Pick()
				if !ok || picks == 2*7 && name != "it has another text" || picks == 7*61 {
					t.Fatalf("%d picks, %d places are not verified", picks, len(left))
				}
				_, rows, _ := r.Read(nil, &k, after, page.MaxLimit, 1<<30)
				left = slices.DeleteFunc(left, func(p place) bool {
					at := positionIn(&k, &p.row)
					return slices.Contains(p.in, k) && after < at && len(rows) > 0 && at <= positionIn(&k, rows[len(rows)-1])
				})
			}
		})
	}
}

// However many searches there are, a pick folds few rows, each once: requests wait for it. It finds the search that has them.
func TestAPickFoldsLittle(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	for n := range roomy.Lists {
		k := byCreatedAt
		if n < roomy.Lists-1 {
			k.Search = fmt.Sprintf("no %d such", n)
		}
		if n == 200 {
			k.Search = list.Fold("long")
		}
		f := read(r, k, 0, 0)
		f.End = true
		r.Merge(f)
	}
	text := strings.Repeat("a long one, ", 100)
	for n := range 64 {
		r.Apply(settled(uint64(2+n), changeOf(uint64(2+n), rowAt(n, "description", text))))
	}
	const picks = 14
	var before, after runtime.MemStats
	found := false
	runtime.ReadMemStats(&before)
	for range picks {
		k, _, _ := r.Pick()
		found = found || k.Search == list.Fold("long")
	}
	runtime.ReadMemStats(&after)
	if bytes := (after.TotalAlloc - before.TotalAlloc) / picks; bytes > 1<<20 || !found { // one SearchText takes some kB
		t.Errorf("%d bytes for a pick; found: %t", bytes, found)
	}
}
