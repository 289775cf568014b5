package replica

// clock has all ranges, and what they take. Its hand goes round and gives each a second
// chance: one that was used since the hand passed stays until it passes again.
type clock struct {
	ranges []*interval
	hand   int
	bytes  int
}

// rangeBytes is what a range takes besides its rows, and placeBytes what each of its rows
// does in it (TestMemory).
const rangeBytes, placeBytes = 240, 12

func (g *interval) bytes() int { return rangeBytes + len(g.lo) + len(g.hi) }

func (c *clock) add(g *interval) {
	g.index = len(c.ranges)
	c.ranges = append(c.ranges, g)
	c.bytes += g.bytes()
}

// remove puts the last range into the place of the one that leaves.
func (c *clock) remove(g *interval) {
	n := len(c.ranges) - 1
	last := c.ranges[n]
	last.index, c.ranges[g.index], c.ranges[n] = g.index, last, nil
	c.ranges = c.ranges[:n]
	c.bytes -= g.bytes()
}

// wasUsed says whether a page of the range was served since the last call.
func (g *interval) wasUsed() bool {
	used := g.used.Swap(false)
	for _, row := range g.rows {
		if row.touched.Load() {
			row.touched.Store(false)
			used = true
		}
	}
	return used
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
		if g := c.ranges[c.hand]; steps > 2*len(c.ranges) || !g.wasUsed() { // mutation: the hand gives no second chance
			r.counts.Evicted++
			r.uncover(g.list, g.lo, g.hi)
		}
	}
}
