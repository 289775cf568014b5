package replica

import (
	"slices"
	"sort"
	"strings"
	"sync/atomic"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// Key names a list.
type Key struct {
	Table  changefeed.List
	Order  lists.Order
	Filter lists.Flags // all rows of the list have these flags
	Search string      // folded; empty = none
}

// List is a list of which the node has ranges. A page that was cut from it equals the state for
// as long as Version is the same. A list that is given up has another version for ever.
//
// Invariant: ranges are not empty intervals, they ascend and do not overlap.
type List struct {
	Key
	table   *table
	version atomic.Uint64
	used    atomic.Bool // was read since another list of the table had to be given up
	ranges  []*Range
}

// Version changes with each change of rows in the list's ranges, and when a range is given
// up. It takes no lock.
func (l *List) Version() uint64 { return l.version.Load() }

// touch notes a use. Most uses find it noted, and write nothing that processors share.
func touch(used *atomic.Bool) {
	if !used.Load() {
		used.Store(true)
	}
}

// Page is a part of a list, without its rows.
type Page struct {
	List    *List
	Version uint64 // the List shows the page until its Version is another one
	More    bool   // the list has a row behind the page
	Last    *Range // the range that has the end of the page
}

// A bound is where a range begins or ends: at the Position of a row, directly behind one, or at
// the end of the list. A range has the positions from its lower bound to before its upper one.

// listEnd is behind each position.
var listEnd = lists.Position(strings.Repeat("\xff", 25))

// behind returns the bound directly behind a position.
func behind(p lists.Position) lists.Position {
	if p == "" {
		return ""
	}
	return p + "\x00"
}

// isBehind says whether the bound is behind(p).
func isBehind(bound, p lists.Position) bool {
	return len(bound) == len(p)+1 && bound[len(p)] == 0 && bound[:len(p)] == p
}

// Range is the rows of a list whose positions are from lo to before hi.
type Range struct {
	list   *List
	lo, hi lists.Position // bounds
	rows   []*lists.Row   // ascending
	used   atomic.Bool    // was read since the clock's hand passed
	index  int            // in clock.ranges
}

// Touch notes that a page which ends in the range was served again without Read, so that the
// range is kept. If it was cut in two meanwhile, its first part is.
func (g *Range) Touch() {
	touch(&g.list.used)
	touch(&g.used)
}

// find returns the index of the first row at the bound or behind it.
func (g *Range) find(at lists.Position) int {
	return sort.Search(len(g.rows), func(i int) bool { return g.rows[i].Compare(g.list.Order, at) >= 0 })
}

// find returns the index of the range that has the bound (covered), else of the next one.
func (l *List) find(at lists.Position) (i int, covered bool) {
	i = sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].hi > at })
	return i, i < len(l.ranges) && l.ranges[i].lo <= at
}

// uncover gives up what the list has from lo to before hi.
func (r *Replica) uncover(l *List, lo, hi lists.Position) {
	r.cut(l, lo)
	r.cut(l, hi)
	from, _ := l.find(lo)
	to, _ := l.find(hi)
	for _, g := range l.ranges[from:to] {
		for _, row := range g.rows {
			r.hide(l.table, row)
		}
		g.rows = nil // pages may have the range
		r.clock.remove(g)
	}
	l.ranges = slices.Delete(l.ranges, from, to)
	l.version.Add(1)
	if len(l.ranges) == 0 {
		delete(l.table.lists, l.Key)
		if len(l.table.lists) == 0 {
			delete(r.tables, l.table.of)
		}
	}
}

// drop gives up the list.
func (r *Replica) drop(l *List) { r.uncover(l, "", listEnd) }

// cut makes two ranges of the one that has the bound, if there is one.
func (r *Replica) cut(l *List, at lists.Position) {
	i, covered := l.find(at)
	if !covered || l.ranges[i].lo == at {
		return
	}
	g := l.ranges[i]
	r.clock.remove(g)
	j := g.find(at)
	right := &Range{list: l, lo: at, hi: g.hi, rows: slices.Clone(g.rows[j:])}
	right.used.Store(g.used.Load())
	clear(g.rows[j:])
	g.hi, g.rows = at, g.rows[:j]
	l.ranges = slices.Insert(l.ranges, i+1, right)
	r.clock.add(g)
	r.clock.add(right)
}

// cover adds the rows from lo to before hi: all that the list has there. What the list
// covers already must be the same; ok is false if it is not.
func (r *Replica) cover(l *List, lo, hi lists.Position, rows []*lists.Row) (ok bool) {
	upTo := func(bound lists.Position) (those []*lists.Row) {
		n := sort.Search(len(rows), func(i int) bool { return rows[i].Compare(l.Order, bound) >= 0 })
		those, rows = rows[:n], rows[n:]
		return those
	}
	for i, _ := l.find(lo); lo < hi; i++ {
		end := hi
		if i < len(l.ranges) && l.ranges[i].lo <= lo {
			g := l.ranges[i]
			if end = min(hi, g.hi); !slices.Equal(upTo(end), g.rows[g.find(lo):g.find(end)]) {
				return false
			}
		} else {
			if i < len(l.ranges) {
				end = min(hi, l.ranges[i].lo)
			}
			r.fillGap(l, i, &Range{list: l, lo: lo, hi: end, rows: slices.Clone(upTo(end))})
		}
		lo = end
	}
	return true
}

func (r *Replica) fillGap(l *List, i int, g *Range) {
	g.used.Store(true)
	for _, row := range g.rows {
		r.show(l.table, row)
	}
	l.ranges = slices.Insert(l.ranges, i, g)
	r.clock.add(g)
}

// Read cuts a page from the ranges of a list: up to n rows behind a position, as many as
// have maxBytes of text, but at least one. If the ranges do not have all of this, ok is
// false, and rows are those that they have. The rows are appended to dst; they are never
// changed, and each version of a row has its own pointer.
func (r *Replica) Read(dst []*lists.Row, k *Key, after lists.Position, n, maxBytes int) (p Page, rows []*lists.Row, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.tables[k.Table]
	if t == nil {
		return p, dst, false
	}
	l := t.lists[*k]
	if l == nil {
		return p, dst, false
	}
	touch(&l.used)
	p.List, p.Version, rows = l, l.version.Load(), dst
	i := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].hi > after && !isBehind(l.ranges[i].hi, after) })
	if i == len(l.ranges) || l.ranges[i].lo > after && !isBehind(l.ranges[i].lo, after) {
		return p, rows, false
	}
	p.Last = l.ranges[i]
	j := sort.Search(len(p.Last.rows), func(j int) bool { return p.Last.rows[j].Compare(l.Order, after) > 0 })
	for bytes := 0; ; i, j = i+1, 0 {
		p.Last = l.ranges[i]
		touch(&p.Last.used)
		for _, row := range p.Last.rows[j:] {
			bytes += len(row.Text())
			if count := len(rows) - len(dst); count == n || bytes > maxBytes && count > 0 {
				p.More = true
				return p, rows, true
			}
			rows = append(rows, row)
		}
		if p.Last.hi == listEnd {
			return p, rows, true
		}
		if i+1 == len(l.ranges) || l.ranges[i+1].lo != p.Last.hi {
			return p, rows, false
		}
	}
}

// clock has all ranges and their bytes. It evicts by the CLOCK algorithm: a hand goes round, and
// a range that was used since it passed last stays until it passes again.
type clock struct {
	ranges []*Range
	hand   int
	bytes  int
}

// rangeBytes is what a range takes besides its rows, and placeBytes what each place for a row
// in it takes (TestMemory).
const rangeBytes, placeBytes = 240, 12

func (g *Range) bytes() int { return rangeBytes + len(g.lo) + len(g.hi) }

func (c *clock) add(g *Range) {
	g.index = len(c.ranges)
	c.ranges = append(c.ranges, g)
	c.bytes += g.bytes()
}

// remove removes a range, and puts the last one into its place.
func (c *clock) remove(g *Range) {
	n := len(c.ranges) - 1
	last := c.ranges[n]
	last.index, c.ranges[g.index], c.ranges[n] = g.index, last, nil
	c.ranges = c.ranges[:n]
	c.bytes -= g.bytes()
}

// maxSteps bounds the ranges that the hand passes at once, so that requests do not wait,
// unless the budget is exceeded by far.
const maxSteps = 128

// evict gives up ranges until the budget is kept.
func (r *Replica) evict() {
	c, budget := &r.clock, r.budget.Rows
	for steps := 0; c.bytes > budget && len(c.ranges) > 0 && (steps < maxSteps || c.bytes > budget+budget/16); steps++ {
		if c.hand++; c.hand >= len(c.ranges) {
			c.hand = 0
		}
		if g := c.ranges[c.hand]; steps > 2*len(c.ranges) || !g.used.Swap(false) {
			r.counts.Evicted++
			r.uncover(g.list, g.lo, g.hi)
		}
	}
}
