//go:build !race

package freshness

import (
	"testing"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// Neither a hit by rule 1 nor one by rule 2 allocates, however the changes are packed.
func TestJudgingAllocatesNothing(t *testing.T) {
	tracker := joinedTracker(1, 0)
	extent := shows(1, 2, 3)
	extent.Order = lists.ByName
	extent.After.NameKey, extent.End.NameKey = "b", "c"
	v := &Validity{ReadPoint: ReadPoint{Snapshot: parse(t, "1:1:")}, Extent: extent}
	if a := tracker.Admit(tracker.Begin(0, 0), v, changefeed.List{}, 0); a != Admitted {
		t.Fatal(a)
	}
	before := v.sequence.Load()
	for i, row := range []lists.Row{gone(5), {ID: rowID(6), NameKey: "a"}, {ID: rowID(7), NameKey: "d"}} {
		tracker.Changed(changefeed.Position{Term: 1, N: uint64(i + 2)}, &changefeed.Change{XID: uint64(i + 2),
			Lists: make([]changefeed.List, 1), Rows: [][]lists.Row{{row}}})
	}
	for name, sequence := range map[string]uint64{"rule 2": before, "rule 1": tracker.sequence} {
		if n := testing.AllocsPerRun(1000, func() {
			v.sequence.Store(sequence)
			if !tracker.IsFresh(v, 0) {
				t.Fatal(v.Invalidation())
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
