//go:build !race

package replica_test

import (
	"testing"

	"listedge/cache/replica"
	"listedge/internal/lists"
)

// The race detector allocates, too, hence the build tag.
func TestHitPath(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	byName := byCreatedAt
	byName.Order = lists.ByName
	for _, k := range []replica.Key{byCreatedAt, byName} {
		r.Merge(read(r, k, 0, 100))
	}
	dst := make([]*lists.Row, 0, 50)
	for _, k := range []replica.Key{byCreatedAt, byName} {
		row := rowAt(10)
		after := row.Position(k.Order)
		if n := testing.AllocsPerRun(1000, func() {
			p, rows, ok := r.Read(dst, &k, after, 50, 1<<20)
			if !ok || len(rows) != 50 || p.List.Version() != p.Version {
				t.Error("no page")
			}
			p.Last.Touch()
		}); n != 0 {
			t.Errorf("%s: %v allocations", k.Order, n)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	for from := 0; from < 10_000; from += 50 {
		r.Merge(read(r, byCreatedAt, from, from+50))
	}
	dst := make([]*lists.Row, 0, 50)
	row := rowAt(5010)
	after := row.Position(lists.ByCreatedAt)
	for b.Loop() {
		r.Read(dst, &byCreatedAt, after, 50, 1<<20)
	}
}

// BenchmarkChange changes one row of a table with 256 lists, all of which show it.
func BenchmarkChange(b *testing.B) {
	const all = ^lists.Flags(0)
	r := replica.New(roomy)
	r.Apply(settled(1))
	for i := range 256 {
		f := read(r, byCreatedAt, 0, 250)
		f.Order, f.Filter = lists.Order(i%2), lists.Flags(i/2<<2)
		f.Search = []string{"", "ITEM"}[i/128]
		for j := range f.Rows {
			f.Rows[j].Flags = all
		}
		if o := r.Merge(f); o != replica.Merged {
			b.Fatal(o)
		}
	}
	n := uint64(1)
	for b.Loop() {
		row := rowAt(int(n) % 250)
		row.SetTexts(row.NameKey(), row.Text()+" "[:n/250%2]).Flags = all
		n++
		r.Apply(settled(n, changeOf(n, row)))
	}
	if s := r.Stats(); s.Lists != 256 {
		b.Errorf("%+v", s)
	}
}
