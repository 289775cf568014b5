package replica_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"listedge/cache/replica"
	"listedge/internal/list"
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

// Each row of each table is verified in time, and a table of one range as often as one of 200.
func TestEachRowIsPicked(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	r := replica.New(roomy)
	if _, _, ok := r.Pick(random.IntN); ok {
		t.Error("something is picked of nothing")
	}
	r.Apply(settled(1))
	small := byCreatedAt
	small.Table.Tenant = "small"
	left, picked := map[replica.Key]map[list.Position]bool{}, map[replica.Key]int{}
	for k, ranges := range map[replica.Key]int{byCreatedAt: 200, small: 1} {
		left[k] = map[list.Position]bool{}
		for from := range ranges { // of nine rows, with a gap behind each
			if o := r.Merge(read(r, k, 10*from, 10*from+9)); o != replica.Merged {
				t.Fatal(o)
			}
			for i := range 9 {
				row := rowAt(10*from + i)
				left[k][positionIn(&k, &row)] = true
			}
		}
	}
	for picks := 1; len(left[small])+len(left[byCreatedAt]) > 0; picks++ {
		k, after, ok := r.Pick(random.IntN)
		if picked[k]++; picks == 400 && picked[small] < 25 {
			t.Errorf("the small table is verified by %d of %d picks", picked[small], picks)
		}
		if picks == 100_000 {
			t.Fatalf("%d and %d rows are not verified", len(left[small]), len(left[byCreatedAt]))
		}
		if !ok {
			continue
		}
		_, rows, _ := r.Read(nil, &k, after, page.MaxLimit, 1<<30)
		for _, row := range rows {
			delete(left[k], positionIn(&k, row))
		}
	}
}

// Half of the verifications are where a row has changed lately.
func TestChangedRowsArePicked(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	r := replica.New(roomy)
	r.Apply(settled(1))
	const rows, picks = 20_000, 100
	for from := 0; from < rows; from += 100 {
		r.Merge(read(r, byCreatedAt, from, from+100))
	}
	changed := rowAt(12_345, "sku", "changed")
	r.Apply(settled(2, changeOf(2, changed)))
	n := 0
	for range picks {
		k, after, ok := r.Pick(random.IntN)
		if !ok {
			continue
		}
		_, page, _ := r.Read(nil, &k, after, page.MaxLimit, 1<<30)
		if slices.ContainsFunc(page, func(row *list.Row) bool { return *row == changed }) {
			n++
		}
	}
	if n < picks/3 {
		t.Errorf("%d of %d verifications have the row that changed", n, picks)
	}
}

// verify has a node verify a page. It says whether the page was compared, and whether it is as it must be.
func (m *model) verify(n *modelNode) (compared, right bool) {
	k, after, ok := n.Pick(m.r.IntN)
	if !ok {
		return false, true
	}
	before := n.Stats().Verified[m.table.List.Name].Pages
	f := m.begin(n, k, after, primary)
	f.Verifies = true
	m.statement(f, page.MaxLimit)
	m.merge(f)
	for f.Outcome() == replica.Parked {
		if n.next == len(m.beats) {
			m.takeSnapshot()
			m.publish()
		}
		m.apply(n)
	}
	right = f.Outcome() != replica.Inconsistent
	return !right || n.Stats().Verified[m.table.List.Name].Pages > before, right
}
