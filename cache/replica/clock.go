package replica

// clock has all ranges in a circle, and what they take. Its hand gives each range a second
// chance: one that was used since the hand passed stays until it passes again.
type clock struct {
	hand   *interval
	ranges int
	bytes  int
}

// rangeBytes is what a range takes besides its rows, and placeBytes what each of its rows
// does in it (TestMemory).
const rangeBytes, placeBytes = 240, 12

func (g *interval) bytes() int { return rangeBytes + len(g.lo) + len(g.hi) }

// add adds a range where the hand comes last.
func (c *clock) add(g *interval) {
	c.ranges++
	c.bytes += g.bytes()
	if c.hand == nil {
		c.hand, g.previous, g.next = g, g, g
		return
	}
	g.previous, g.next = c.hand.previous, c.hand
	g.previous.next, g.next.previous = g, g
}

func (c *clock) remove(g *interval) {
	c.ranges--
	c.bytes -= g.bytes()
	g.previous.next, g.next.previous = g.next, g.previous
	if c.hand == g {
		c.hand = g.next
	}
	if c.ranges == 0 {
		c.hand = nil
	}
	g.previous, g.next = nil, nil
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
	for steps := 0; c.bytes > budget && c.hand != nil && (steps < maxSteps || c.bytes > budget+budget/16); steps++ {
		g := c.hand
		c.hand = g.next
		if steps <= 2*c.ranges && g.wasUsed() {
			continue
		}
		r.counts.Evicted++
		r.uncover(g.list, g.lo, g.hi)
	}
}
