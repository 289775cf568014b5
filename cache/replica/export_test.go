package replica

import (
	"fmt"

	"listedge/internal/lists"
)

// CutAt sets the most rows of a range, so that few rows make many ranges.
func (r *Replica) CutAt(rows int) { r.longest = rows }

// Ranges calls do with each range of a list.
func (r *Replica) Ranges(k *Key, do func(lo, hi lists.Position, rows []*lists.Row)) {
	if t := r.tables[k.Table]; t != nil && t.lists[*k] != nil {
		for _, g := range t.lists[*k].ranges {
			do(g.lo, g.hi, g.rows)
		}
	}
}

// Consistent returns which of the invariants of the package's types does not hold.
func (r *Replica) Consistent() error {
	shown, bytes, ranges := map[*lists.Row]int{}, 0, 0
	for of, t := range r.tables {
		for _, l := range t.lists {
			if len(l.ranges) == 0 || l.table != t || t.of != of {
				return fmt.Errorf("an empty list %v", l.Key)
			}
			before := lists.Position("")
			for _, g := range l.ranges {
				if g.lo < before || g.lo >= g.hi {
					return fmt.Errorf("%v: a range of %d rows from %q to %q", l.Key, len(g.rows), g.lo, g.hi)
				}
				before = g.hi
				ranges++
				bytes += g.bytes() + placeBytes*len(g.rows)
				for _, row := range g.rows {
					shown[row]++
				}
			}
		}
		for id, held := range t.rows {
			bytes += rowSize(held.row)
			if held.row.ID != id || held.shown != shown[held.row] || held.shown == 0 {
				return fmt.Errorf("row %v is shown %d times, not %d", id, shown[held.row], held.shown)
			}
			delete(shown, held.row)
		}
	}
	if len(shown) > 0 || bytes != r.clock.bytes || ranges != len(r.clock.ranges) || r.history.bytes > r.budget.Changes {
		return fmt.Errorf("%d rows unknown to their tables; %d bytes, counted %d; %d ranges, counted %d",
			len(shown), bytes, r.clock.bytes, ranges, len(r.clock.ranges))
	}
	return nil
}
