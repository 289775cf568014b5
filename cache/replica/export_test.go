package replica

import (
	"fmt"

	"listedge/internal/list"
)

// Consistent returns which of the invariants of the package's types does not hold.
func (r *Replica) Consistent() error {
	shown, bytes, ranges := map[*list.Row]int{}, 0, 0
	for of, t := range r.tables {
		for _, l := range t.lists {
			if len(l.ranges) == 0 || l.table != t || t.of != of {
				return fmt.Errorf("an empty list %v", l.Key)
			}
			before := list.Position("")
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
		for key, held := range t.rows {
			bytes += rowSize(held.row)
			if held.row.Key() != key || held.shown != shown[held.row] || held.shown == 0 {
				return fmt.Errorf("row %q is shown %d times, not %d", key, shown[held.row], held.shown)
			}
			delete(shown, held.row)
		}
	}
	if len(shown) > 0 || bytes != r.clock.bytes || ranges != len(r.clock.ranges) || r.history.bytes > r.budget.Changes {
		return fmt.Errorf("%d rows unknown to their tables; %d bytes, counted %d; %d ranges, counted %d",
			len(shown), bytes, r.clock.bytes, ranges, len(r.clock.ranges))
	}
	return r.changes.consistent()
}

func (c *changes) consistent() error {
	ids, bytes := 0, 0
	for _, t := range c.records {
		if c.of[t.of] != t {
			return fmt.Errorf("a record of %v that is not found", t.of)
		}
		before, n := place{}, 0
		for i, b := range t.blocks {
			if len(b) == 0 || len(b) > c.block || i > 0 && len(b)+len(t.blocks[i-1]) <= c.block {
				return fmt.Errorf("block %d of %v has %d ids", i, t.of, len(b))
			}
			for _, id := range b {
				if before.beat != nil && before.point().Compare(id.point()) >= 0 || t.places[id.key] != id.place {
					return fmt.Errorf("id %q of %v is out of order, or elsewhere", id.key, t.of)
				}
				before, n, bytes = id.place, n+1, bytes+idBytes+len(id.key)
			}
		}
		if n != len(t.places) {
			return fmt.Errorf("%v has %d ids in blocks, and %d places", t.of, n, len(t.places))
		}
		ids, bytes = ids+n, bytes+recordBytes
	}
	if ids != c.ids || bytes != c.bytes || len(c.records) != len(c.of) {
		return fmt.Errorf("%d ids in %d bytes and %d records, counted %d, %d, %d", ids, bytes, len(c.records), c.ids, c.bytes, len(c.of))
	}
	return nil
}
