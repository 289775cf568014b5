//go:build !race

package replica_test

import (
	"testing"

	"listedge/cache/replica"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// The race detector allocates, too, hence the build tag.
func TestHitPath(t *testing.T) {
	r := replica.New(roomy)
	r.Apply(settled(1))
	byName := byCreatedAt
	byName.Order = listtest.ByName
	for _, k := range []replica.Key{byCreatedAt, byName} {
		r.Merge(read(r, k, 0, 100))
	}
	dst := make([]*list.Row, 0, 50)
	for _, k := range []replica.Key{byCreatedAt, byName} {
		row := rowAt(10)
		after := positionIn(&k, &row)
		if n := testing.AllocsPerRun(1000, func() {
			p, rows, ok := r.Read(dst, &k, after, 50, 1<<20)
			if !ok || len(rows) != 50 || p.List.Version() != p.Version {
				t.Error("no page")
			}
			p.Last.Touch()
		}); n != 0 {
			t.Errorf("order %d: %v allocations", k.Order, n)
		}
	}
}
