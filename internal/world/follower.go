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
	server            *Redis
	log               *changefeed.Redis // on that server
	run, timeline     string            // of the primary that it is connected to
	epoch, from       string            // from: the one that was present when it took the slot
	term              uint64
	slots             int                 // it has the one of this number
	follows           bool                // its description has the list
	last, after       changefeed.Position // last: acknowledged; after: noted for the next heartbeat
	waiting           []changefeed.Entry
	sent              int    // of those that wait, under way; 0 = none
	happened, noted   bool   // they are in the log; after is noted
	decoded, confirms uint64 // LSN; confirms: at the next heartbeat
	unsettled         []*transaction
	pending           *changefeed.Heartbeat
	beatAt, pausedTo  time.Time
	ended             bool
}

// changes are the slot, the followers, and the servers of the log.
type changes struct {
	slot           *follower
	followers      []*follower
	takenAt        time.Time // the slot is, not before
	slots          int       // that there were
	needEpoch      bool      // nothing that was known holds any more: until the epoch of this slot is present
	another        bool      // the next follower's description lacks the list
	epochs, names  int
	confirmed      uint64   // LSN
	unknown        []uint64 // running when the slot was made; nothing is published before they are over
	server, mirror *Redis
	dump           *Redis // what somebody has saved of it
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
	f := &follower{run: w.Run, timeline: w.TimelineName(), term: w.nextXID, slots: c.slots, follows: !c.another, decoded: c.confirmed}
	f.connect(w)
	f.from = must(f.log.Epoch(w.ctx))
	f.epoch = f.from
	c.slot, c.followers = f, append(c.followers, f)
	w.nextXID++
	w.completed = max(w.completed, f.term)
	previous, goesOn := f.goesOn(w)
	is, _ := fleet.ParseEpoch(f.epoch) // an old dump may name one of another run
	if c.needEpoch || is.Instance != fleet.Digest(w.Run) || int(is.Timeline) != w.Timeline || !goesOn {
		c.epochs++
		f.epoch = fleet.EpochName{Identity: w.Server().Digest(), Timeline: uint32(w.Timeline), Instance: fleet.Digest(w.Run), Published: "lists",
			Random: fleet.Digest(string(rune(c.epochs)))}.String()
		previous = changefeed.Position{}
	}
	f.last = changefeed.Position{Term: f.term}
	f.queue(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: previous}})
	w.Tracef("term %d of %s begins behind %s, from %d", f.term, f.epoch, previous, f.decoded)
}

// connect gives the follower a connection to the server that has the log.
func (f *follower) connect(w *World) {
	f.server = w.changes.server
	f.log = changefeed.NewRedis(changefeed.RedisOptions{Client: f.server.atOnce(), Followed: w.followed, Lists: w.lists})
}

// goesOn says whether the log reaches as far as the slot was confirmed, and where it ends.
func (f *follower) goesOn(w *World) (last changefeed.Position, yes bool) {
	last = must(f.log.Last(w.ctx, f.epoch))
	reader, _, err := f.log.Reader(w.ctx)
	if err != nil {
		panic(err)
	}
	entries, _, err := reader.Read(w.ctx, f.epoch, changefeed.Position{}, 0)
	if err != nil {
		panic(err)
	}
	return last, slices.ContainsFunc(entries, func(e changefeed.Entry) bool {
		return e.Heartbeat != nil && e.Heartbeat.LSN >= f.decoded || e.Change != nil && e.Change.LSN >= f.decoded
	})
}

// must is for calls that a server answers at once.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// publish appends the entries that are under way.
func (f *follower) publish(w *World) (ok bool) {
	err := f.log.Append(w.ctx, f.epoch, f.waiting[:f.sent]...)
	if f.log.Hurried() {
		w.hurried = true
	}
	return err == nil
}

// endFollower ends a follower. What it has sent may still happen.
func (c *changes) endFollower(w *World, f *follower) {
	f.ended = true
	if c.slot == f {
		c.slot = nil
	}
	if f.sent > 0 && !f.happened && w.Chance(2) {
		c.late = append(c.late, func() { f.publish(w) })
	}
}

// loseSlot: another slot begins another epoch.
func (c *changes) loseSlot(w *World) {
	if c.slot != nil {
		c.endFollower(w, c.slot)
	}
	c.slots++
	c.takenAt, c.confirmed, c.needEpoch, c.unknown = w.in(boundTicks/4), w.flushed, true, nil
	for _, x := range w.active {
		c.unknown = append(c.unknown, x.xid)
	}
	w.Tracef("the slot is lost, at %d", w.flushed)
}

func (f *follower) queue(e changefeed.Entry) {
	e.Position = changefeed.Position{Term: f.term, N: f.last.N + uint64(len(f.waiting)) + 1}
	f.waiting = append(f.waiting, e)
}

// follow is a few steps of a follower, which ends where the log refuses it.
func (f *follower) follow(w *World) {
	for !f.ended && w.reached(f.pausedTo) && w.reached(w.hangsTo) && !w.Chance(4) {
		if w.Happens(followerPauses, 500) {
			f.pausedTo = w.in(2 * boundTicks)
			w.Tracef("the follower of term %d pauses", f.term)
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
			f.name(w, f.from)
			c.needEpoch = c.needEpoch && (f.ended || f.slots != c.slots)
		}
		return
	case f.sent > 0:
		f.happened = f.publish(w)
		if !f.happened {
			w.changes.endFollower(w, f)
		}
		return
	case f.run != w.Run: // its connection ends
		w.changes.endFollower(w, f)
		return
	case f.server != c.server && w.Chance(20):
		f.connect(w)
	}
	for c.slot == f && f.decoded < w.flushed && !w.Chance(3) {
		x := w.wal[f.decoded]
		f.decoded++
		f.unsettled = append(f.unsettled, x)
		c := f.published(&x.change)
		if len(c.Touched) > 0 {
			f.queue(changefeed.Entry{Change: c})
		}
	}
	if c.slot == f && slices.ContainsFunc(w.active, func(x *transaction) bool { return slices.Contains(c.unknown, x.xid) }) {
		f.sent = len(f.waiting) // a slot is not made before these are over
		return
	}
	if f.last.N > 0 && w.Chance(20) { // the server may have lost it
		f.name(w, "")
		if f.ended {
			return
		}
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
	if w.Chance(2) || f.pending == nil && !f.noted {
		f.sent = len(f.waiting)
	}
}

// name names the epoch, unless another one than from is named.
func (f *follower) name(w *World, from string) {
	if f.log.SetEpoch(w.ctx, from, f.epoch) != nil {
		w.changes.endFollower(w, f)
	}
}

// published is what the follower sends of a change: keys always, and rows of lists of its description.
func (f *follower) published(c *changefeed.Change) *changefeed.Change {
	if f.follows {
		return c
	}
	own := *c
	own.Touched = nil
	for _, t := range c.Touched {
		if t.List == nil {
			own.Touched = append(own.Touched, t)
		}
	}
	return &own
}

// beat queues the heartbeat. The next one begins when it is acknowledged.
func (f *follower) beat(w *World) {
	h := f.pending
	s, _ := changefeed.ParseSnapshot(h.Snapshot)
	f.unsettled = slices.DeleteFunc(f.unsettled, func(x *transaction) bool { return s.Sees(x.xid) })
	to := h.LSN
	for _, x := range f.unsettled {
		c := f.published(&x.change)
		if len(c.Touched) > 0 {
			h.Unsettled = append(h.Unsettled, c.Unnamed())
		}
		to = min(to, x.lsn-1)
	}
	f.queue(changefeed.Entry{Heartbeat: h})
	f.sent, f.pending = len(f.waiting), nil
	if w.changes.slot == f {
		w.changes.confirmed = max(w.changes.confirmed, f.confirms)
	}
	f.confirms = to
}

// failOver makes another server the fleet's: a new one, or the mirror, with the sessions of those who read from it.
func (c *changes) failOver(w *World) {
	c.names++
	if w.Chance(2) {
		c.server = c.server.Fork(serverName(c.names), w.few())
	} else {
		c.server = c.mirror
		c.server.Promote()
		c.mirror = c.server.mirror(fmt.Sprint("mirror ", c.names))
	}
	w.Tracef("fail-over to %s", c.server.Name)
}

// accidents are what may happen to followers and to Redis.
func (c *changes) accidents(w *World) {
	switch {
	case c.slot != nil && w.Happens(FollowerDies, 1500):
		w.Tracef("the follower dies")
		c.endFollower(w, c.slot)
		c.takenAt = w.in(2 * boundTicks)
	case c.slot != nil && w.Happens(followerIsOvertaken, 3000):
		w.Tracef("the follower is overtaken")
		c.slot.pausedTo = w.in(2 * boundTicks)
		c.slot, c.takenAt = nil, w.in(boundTicks)
	case c.slot != nil && w.Happens(SlotIsLost, 4000):
		c.loseSlot(w)
	case c.slot != nil && (w.Happens(followsAnotherList, 4000) || c.another && w.Chance(300)):
		c.endFollower(w, c.slot)
		c.another, c.takenAt = !c.another, w.in(boundTicks/2)
		w.Tracef("the next follower lacks the list: %t", c.another)
	case c.slot != nil && w.Happens(trimmed, 300): // perhaps under a node that is behind
		n, kept := c.server.Trim(w.followed.LogPrefix()+"log:"+c.slot.epoch, func(of int) int { return w.r.IntN(of + 1) })
		w.Tracef("%s trims %d entries and keeps %d", c.server.Name, n, kept)
	case w.Happens(RedisLosesAll, 2500):
		c.lose(w)
	case w.Happens(redisFailsOver, 2500):
		c.failOver(w)
		for _, f := range c.followers {
			if w.Chance(4) { // else it finds the new master later
				c.endFollower(w, f)
			}
		}
	case w.Happens(mirrorLags, 5):
		c.mirror.Follow(c.server, w.few())
	case w.Happens(dumps, 500):
		c.dump = c.server.Fork("dump", 0)
	}
	for i := len(c.late) - 1; i >= 0; i-- {
		if w.Chance(3) {
			c.late[i]()
			c.late = slices.Delete(c.late, i, i+1)
		}
	}
}

// lose takes all keys of Redis away. It may also be that it begins again with an old dump: then it is another run.
func (c *changes) lose(w *World) {
	if c.dump == nil || w.Chance(2) {
		w.Tracef("%s loses all", c.server.Name)
		c.server.Lose(nil)
		return
	}
	c.names++
	c.server = c.dump.Fork(serverName(c.names), 0)
	c.mirror = c.server.mirror(fmt.Sprint("mirror ", c.names))
	w.Tracef("%s begins with an old dump", c.server.Name)
}
