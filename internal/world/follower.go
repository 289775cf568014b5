package world

import (
	"fmt"
	"slices"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
)

// follower has the slot, or had it: one that is slow may be overtaken, and goes on without a word of it. What it has sent may
// arrive after its end. It keeps the contract of origin/follower.
type follower struct {
	server             *server
	run, timeline      string // of the primary that it is connected to
	epoch, from        string // from: the one that was present when it took the slot
	term               uint64
	follows            bool                // its description has the list
	first, last, after changefeed.Position // first: appended to this server; last: acknowledged; after: noted for the next heartbeat
	waiting            []changefeed.Entry
	sent               int    // of those that wait, under way; 0 = none
	happened, noted    bool   // they are in the log; after is noted
	decoded, confirms  uint64 // LSN; confirms: at the next heartbeat
	unsettled          []*transaction
	pending            *changefeed.Heartbeat
	beatAt, pausedTo   time.Time
	ended              bool
}

// changes are the slot, the followers, and the servers of the log.
type changes struct {
	slot           *follower
	followers      []*follower
	takenAt        time.Time // the slot is, not before
	needEpoch      bool      // nothing that was known holds any more
	another        bool      // the next follower's description lacks the list
	epochs, names  int
	confirmed      uint64   // LSN
	unknown        []uint64 // running when the slot was made; nothing is published before they are over
	server, mirror *server
	late           []func()
	run            string // of the primary that the slot is of
}

// take begins a term, and an epoch if one is needed.
func (c *changes) take(w *World) {
	if c.run != w.Run { // a slot is of one run
		c.run = w.Run
		c.loseSlot(w)
	}
	if c.slot != nil || !w.reached(c.takenAt) {
		return
	}
	f := &follower{server: c.server, run: w.Run, timeline: w.TimelineName(), epoch: c.server.epoch, from: c.server.epoch, term: w.nextXID,
		follows: !c.another, decoded: c.confirmed}
	c.slot, c.followers = f, append(c.followers, f)
	w.nextXID++
	w.completed = max(w.completed, f.term)
	var previous changefeed.Position
	if c.needEpoch || f.epoch == "" || !f.goesOn() {
		c.epochs++
		c.needEpoch = false
		f.epoch = fleet.EpochName{Identity: w.Server().Digest(), Timeline: uint32(w.Timeline), Instance: fleet.Digest(w.Run), Published: "lists",
			Random: fleet.Digest(string(rune(c.epochs)))}.String()
	} else {
		previous = f.server.log(f.epoch).last
	}
	f.last, f.first = changefeed.Position{Term: f.term}, changefeed.Position{Term: f.term, N: 1}
	f.queue(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: previous}})
	w.trace("term %d of %s begins behind %s, from %d", f.term, f.epoch, previous, f.decoded)
}

// goesOn says whether the log reaches as far as the slot was confirmed.
func (f *follower) goesOn() bool {
	return slices.ContainsFunc(f.server.log(f.epoch).all, func(e changefeed.Entry) bool {
		return e.Heartbeat != nil && e.Heartbeat.LSN >= f.decoded || e.Change != nil && e.Change.LSN >= f.decoded
	})
}

// endFollower ends a follower. What it has sent may still happen.
func (c *changes) endFollower(w *World, f *follower) {
	f.ended = true
	if c.slot == f {
		c.slot = nil
	}
	if f.sent > 0 && !f.happened && w.chance(2) {
		c.late = append(c.late, func() { _ = f.server.append(f.epoch, f.waiting[:f.sent]) })
	}
}

// loseSlot: another slot begins another epoch.
func (c *changes) loseSlot(w *World) {
	if c.slot != nil {
		c.endFollower(w, c.slot)
	}
	c.takenAt, c.confirmed, c.needEpoch, c.unknown = w.in(boundTicks/4), w.flushed, true, nil
	for _, x := range w.active {
		c.unknown = append(c.unknown, x.xid)
	}
	w.trace("the slot is lost, at %d", w.flushed)
}

func (f *follower) queue(e changefeed.Entry) {
	e.Position = changefeed.Position{Term: f.term, N: f.last.N + uint64(len(f.waiting)) + 1}
	f.waiting = append(f.waiting, e)
}

// follow is a few steps of a follower, which ends where the log refuses it.
func (f *follower) follow(w *World) {
	for !f.ended && w.reached(f.pausedTo) && !w.chance(4) {
		if w.happens(followerPauses, 500) {
			f.pausedTo = w.in(2 * boundTicks)
			w.trace("the follower of term %d pauses", f.term)
		}
		f.followOn(w)
	}
}

func (f *follower) followOn(w *World) {
	c := &w.changes
	switch {
	case f.sent > 0 && f.happened: // it is acknowledged
		f.last, f.waiting = f.waiting[f.sent-1].Position, slices.Clone(f.waiting[f.sent:])
		f.sent, f.happened = 0, false
		if f.last.N == 1 { // the term has begun
			if f.server.epoch != "" && f.server.epoch != f.from && f.server.epoch != f.epoch { // superseded
				w.changes.endFollower(w, f)
				return
			}
			f.server.epoch = f.epoch
		}
		return
	case f.sent > 0:
		f.happened = f.server.append(f.epoch, f.waiting[:f.sent])
		if !f.happened {
			w.changes.endFollower(w, f)
		}
		return
	case f.run != w.Run: // its connection ends
		w.changes.endFollower(w, f)
		return
	case f.server != c.server && w.chance(20):
		f.server, f.first = c.server, changefeed.Position{Term: f.term, N: f.last.N + 1}
	}
	for c.slot == f && f.decoded < w.flushed && !w.chance(3) {
		x := w.wal[f.decoded]
		f.decoded++
		f.unsettled = append(f.unsettled, x)
		if f.follows {
			f.queue(changefeed.Entry{Change: &x.change})
		}
	}
	if c.slot == f && slices.ContainsFunc(w.active, func(x *transaction) bool { return slices.Contains(c.unknown, x.xid) }) {
		f.sent = len(f.waiting) // a slot is not made before these are over
		return
	}
	if f.server.epoch == "" && f.last.N > 0 && w.chance(20) { // the server has lost it
		f.server.epoch = f.epoch
	}
	switch {
	case f.pending == nil && !f.noted && (w.reached(f.beatAt) || w.hurried):
		f.noted, f.after, w.hurried = true, f.last, false
		f.beatAt = w.at(8)
	case f.noted:
		f.noted = false
		f.pending = &changefeed.Heartbeat{LSN: uint64(len(w.wal)), Snapshot: w.snapshot().String(), Timeline: f.timeline, StartedAt: f.run, After: f.after}
		if f.follows {
			f.pending.Followed = []*list.List{w.List}
		}
	case f.pending != nil && f.decoded >= f.pending.LSN:
		f.beat(w)
	}
	if w.chance(2) || f.pending == nil && !f.noted {
		f.sent = len(f.waiting)
	}
}

// beat queues the heartbeat. The next one begins when it is acknowledged.
func (f *follower) beat(w *World) {
	h := f.pending
	s, _ := changefeed.ParseSnapshot(h.Snapshot)
	f.unsettled = slices.DeleteFunc(f.unsettled, func(x *transaction) bool { return s.Sees(x.xid) })
	to := h.LSN
	for _, x := range f.unsettled {
		if f.follows {
			h.Unsettled = append(h.Unsettled, x.change.Unnamed())
		}
		to = min(to, x.lsn-1)
	}
	h.LogServer = f.server.name
	if h.After.Compare(f.first) < 0 {
		h.After = changefeed.Position{}
	}
	f.queue(changefeed.Entry{Heartbeat: h})
	f.sent, f.pending = len(f.waiting), nil
	if w.changes.slot == f {
		w.changes.confirmed = max(w.changes.confirmed, f.confirms)
	}
	f.confirms = to
}

// failOver makes another server the log's: a new one, or the mirror, with the sessions of those who read from it.
func (c *changes) failOver(w *World) {
	c.names++
	if w.chance(2) {
		c.server = c.server.fork(serverName(c.names), w.r.IntN(6))
	} else {
		c.server = c.mirror
		c.mirror = c.server.fork(fmt.Sprint("mirror ", c.names), 0)
	}
	w.trace("fail-over to %s", c.server.name)
}

// accidents are what may happen to followers and the log.
func (c *changes) accidents(w *World) {
	log := c.server.log(c.server.epoch)
	switch {
	case c.slot != nil && w.happens(followerDies, 1500):
		w.trace("the follower dies")
		c.endFollower(w, c.slot)
		c.takenAt = w.in(2 * boundTicks)
	case c.slot != nil && w.happens(followerIsOvertaken, 3000):
		w.trace("the follower is overtaken")
		c.slot.pausedTo = w.in(2 * boundTicks)
		c.slot, c.takenAt = nil, w.in(boundTicks)
	case c.slot != nil && w.happens(slotIsLost, 4000):
		c.loseSlot(w)
	case c.slot != nil && (w.happens(followsAnotherList, 4000) || c.another && w.chance(300)):
		c.endFollower(w, c.slot)
		c.another, c.takenAt = !c.another, w.in(boundTicks/2)
		w.trace("the next follower lacks the list: %t", c.another)
	case len(log.all) > 0 && w.happens(trimmed, 300): // perhaps under a node that is behind
		n := w.r.IntN(len(log.all) + 1)
		log.all = slices.Clone(log.all[n:])
		w.trace("%s trims %d entries and keeps %d", c.server.name, n, len(log.all))
	case w.happens(redisLosesAll, 2500):
		w.trace("%s loses all", c.server.name)
		c.server.epoch, c.server.logs, c.server.checkpoint = "", map[string]*entries{}, map[string]*changefeed.Checkpoint{}
	case w.happens(redisFailsOver, 2500):
		c.failOver(w)
		for _, f := range c.followers {
			if w.chance(4) { // else it finds the new master later
				c.endFollower(w, f)
			}
		}
	case w.happens(mirrorLags, 5):
		is := c.server.fork(c.mirror.name, w.r.IntN(8))
		if is.log(is.epoch).last.Compare(c.mirror.log(is.epoch).last) > 0 {
			*c.mirror = *is
		}
	}
	for i := len(c.late) - 1; i >= 0; i-- {
		if w.chance(3) {
			c.late[i]()
			c.late = slices.Delete(c.late, i, i+1)
		}
	}
}
