package replica

import (
	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// point is where the state was when a change was settled: by which heartbeat, and the
// change's own LSN.
type point struct {
	at  changefeed.Position
	lsn uint64
}

// remembered is a change of one table that was settled.
type remembered struct {
	point
	xid   uint64
	table changefeed.List // without a workspace: the whole collection
	rows  []lists.Row     // nil = any row may have changed
}

// rememberedBytes and changedBytes are what a change and each of its rows take besides
// their texts.
const rememberedBytes, changedBytes = 144, 64

func (c *remembered) bytes() int {
	n := rememberedBytes
	for i := range c.rows {
		n += changedBytes + c.rows[i].Size()
	}
	return n
}

// history has the changes that were settled last, in this order.
//
// Invariant: a change that was settled, and that it does not have, was settled by the
// floor's heartbeat or before, and its LSN is not above the floor's.
type history struct {
	queue []*remembered
	of    map[changefeed.List][]*remembered
	bytes int
	floor point
}

func (h *history) add(c *remembered) {
	h.queue = append(h.queue, c)
	h.of[c.table] = append(h.of[c.table], c)
	h.bytes += c.bytes()
}

// trim forgets the oldest changes.
func (h *history) trim(budget int) {
	for h.bytes > budget {
		c := h.queue[0]
		h.queue[0], h.queue = nil, h.queue[1:]
		h.floor = point{c.at, max(h.floor.lsn, c.lsn)} // mutation: a forgotten change leaves no floor; the floor's LSN falls
		h.bytes -= c.bytes()
		if of := h.of[c.table]; len(of) > 1 {
			of[0], h.of[c.table] = nil, of[1:]
		} else {
			delete(h.of, c.table)
		}
	}
}
