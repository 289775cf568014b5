package world

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/origin/follower"
)

// holder has the slot, or had it: one that is slow may be overtaken, and goes on without a word of it. Its term is a real one, and this is
// the primary as that knows it: a follower.Upstream.
type holder struct {
	world   *World
	name    string
	access  *Access
	run     string // of the primary that it is connected to
	follows bool   // its description has the list
	streams bool
	sent    uint64 // LSN: so far its stream goes
	stream  chan follower.Received
	isCut   bool          // its connection to the primary has ended
	cut     chan struct{} // closed then
	end     func()
	ended   chan struct{} // closed once its term has ended
	left    time.Time     // since then it has not had the slot; zero = it has
}

// changes are the slot, those who hold it, and the servers of the log.
type changes struct {
	slot           *holder
	holders        []*holder
	takenAt        time.Time // the slot is, not before
	fresh          bool      // it was just made
	another        bool      // the next follower's description lacks the list
	terms, names   int
	confirmed      uint64   // LSN
	unknown        []uint64 // running when the slot was made, which waits until they are over
	server, mirror *Redis
	dump           *Redis // what somebody has saved of it
	run            string // of the primary that the slot is of
	timeline       int
}

// toPrimary is the road of a holder.
var toPrimary = Road{1, 1, 60, Slow, 300, Cuts, 2000}

// take lets a follower take the slot, once it is made and nobody has it.
func (c *changes) take(w *World) {
	if c.run != w.Run {
		c.restarts(w)
	}
	unknown := func(x *transaction) bool { return slices.Contains(c.unknown, x.xid) }
	if c.slot != nil || !w.reached(c.takenAt) || slices.ContainsFunc(w.active, unknown) {
		return
	}
	c.terms++
	h := &holder{world: w, name: fmt.Sprint("follower ", c.terms), run: w.Run, follows: !c.another,
		stream: make(chan follower.Received, 1000), cut: make(chan struct{}), ended: make(chan struct{})}
	h.access = w.Redis(h.name)
	lists, followed, random := &list.Set{}, &fleet.Followed{}, fleet.Digest(h.name)
	if h.follows {
		lists = w.lists
	}
	followed.SetServer(w.Server())
	f := follower.New(follower.Options{Lists: lists, Log: w.Log(h.access, followed), Followed: followed, LogKept: time.Minute,
		Logger: slog.New(slog.DiscardHandler), Random: func() string { return random }})
	ctx, cancel := context.WithCancel(w.ctx)
	h.end = cancel
	fresh := c.fresh
	c.fresh, c.slot, c.holders = false, h, append(c.holders, h)
	w.Tracef("%s takes the slot at %d, fresh %t", h.name, c.confirmed, fresh)
	go func() {
		defer close(h.ended)
		_ = f.Follow(ctx, h, false, fresh)
	}()
}

// restarts is what becomes of the slot when the primary begins another run: a crash need not lose it.
func (c *changes) restarts(w *World) {
	kept := c.timeline == w.Timeline && w.Chance(2)
	c.run, c.timeline = w.Run, w.Timeline
	for _, h := range c.holders {
		c.leave(h)
	}
	if !kept {
		c.loseSlot(w)
	}
	c.confirmed = min(c.confirmed, w.flushed)
}

// leave has a holder lose the slot, and its connection.
func (c *changes) leave(h *holder) {
	if c.slot == h {
		c.slot = nil
	}
	if !h.isCut {
		h.isCut, h.left = true, h.world.now()
		close(h.cut)
	}
}

// kill ends the process of a holder. What it has sent may still arrive.
func (c *changes) kill(h *holder) {
	h.end()
	c.leave(h)
}

// loseSlot: another slot begins another epoch.
func (c *changes) loseSlot(w *World) {
	if c.slot != nil {
		c.leave(c.slot)
	}
	c.takenAt, c.confirmed, c.fresh, c.unknown = w.in(boundTicks/4), w.flushed, true, nil
	for _, x := range w.active {
		c.unknown = append(c.unknown, x.xid)
	}
	w.Tracef("the slot is lost, at %d", w.flushed)
}

// step lets the holder of the slot have its stream, and forgets those that have ended.
func (c *changes) step(w *World) {
	c.take(w)
	c.holders = slices.DeleteFunc(c.holders, func(h *holder) bool {
		select {
		case <-h.ended:
			if c.slot == h {
				c.takenAt = w.in(boundTicks / 4)
				w.Tracef("%s ends", h.name)
			}
			c.leave(h)
			gone := w.reached(h.left.Add(Bound))
			if gone {
				h.access.Close()
			}
			return gone
		default:
			h.send()
			if c.slot != h && w.reached(h.access.pausedTo) && w.Chance(20) { // it was overtaken
				c.leave(h)
			}
			return false
		}
	})
}

// close ends all followers.
func (c *changes) close() {
	for _, h := range c.holders {
		h.end()
		<-h.ended
	}
}

// epoch is the one that the fleet's Redis names; empty = none.
func (c *changes) epoch(w *World) string {
	ask := &RedisCall{Commands: [][]string{{"get", w.followed.EpochKey()}}}
	c.server.Execute(ask)
	name, _ := ask.Replies[0].(string)
	return name
}

// pause has nothing reach a holder for so long.
func (h *holder) pause(d time.Duration) {
	h.access.pausedTo = h.world.now().Add(d)
	h.world.Tracef("%s pauses", h.name)
}

// send sends what is decoded.
func (h *holder) send() {
	w := h.world
	for h.streams && !h.isCut && w.changes.slot == h && w.reached(h.access.pausedTo) && h.sent < w.flushed && len(h.stream) < cap(h.stream) && !w.Chance(4) {
		x := w.wal[h.sent]
		h.sent++
		commit := &follower.Commit{Change: x.change, Start: pglogrepl.LSN(x.lsn - 1)}
		if !h.follows { // keys always, and rows of lists of its description
			commit.Change.Touched = nil
			for _, t := range x.change.Touched {
				if t.List == nil {
					commit.Change.Touched = append(commit.Change.Touched, t)
				}
			}
			commit.Unlisted = len(commit.Change.Touched) < len(x.change.Touched)
		}
		h.stream <- follower.Received{Position: pglogrepl.LSN(x.lsn), Commit: commit}
	}
}

// ask has the primary execute a statement.
func (h *holder) ask(ctx context.Context, name string, execute func(w *World)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return h.world.Send(ctx, h.call(name, execute))
}

func (h *holder) call(name string, execute func(w *World)) *Call {
	w := h.world
	return &Call{Name: h.name + " " + name, Decide: func(m *Message) {
		w.Draw(m, &toPrimary)
		m.Execute = func() time.Duration {
			if h.isCut {
				m.Fate = CutBefore
				return 0
			}
			execute(w)
			m.Back = max(m.Back, h.access.pausedTo.Sub(w.now()))
			return 0
		}
	}}
}

// Check and the next eight implement follower.Upstream.
func (h *holder) Check(ctx context.Context) (follower.Run, error) {
	err := h.ask(ctx, "checks", func(*World) {})
	return follower.Run{CheckpointerStart: h.run, Published: "lists"}, err
}

// View takes a snapshot.
func (h *holder) View(ctx context.Context, _ string) (follower.View, error) {
	v := &follower.View{}
	err := h.ask(ctx, "takes a snapshot", func(w *World) {
		s := w.snapshot()
		*v = follower.View{At: pglogrepl.LSN(len(w.wal)), Snapshot: s, Text: s.String(), Version: fmt.Sprint(w.catalog(), " ", h.follows)}
	})
	if err != nil {
		return follower.View{}, err
	}
	return *v, nil
}

// Use does nothing: what is sent is decoded.
func (h *holder) Use(follower.View) {}

// Slot polls the slot.
func (h *holder) Slot(ctx context.Context) (follower.Slot, error) {
	return follower.Slot{}, h.ask(ctx, "polls", func(*World) {})
}

// Replicate starts streaming.
func (h *holder) Replicate(ctx context.Context) (fleet.Server, error) {
	server := &fleet.Server{}
	err := h.ask(ctx, "replicates", func(w *World) {
		*server = w.Server()
		h.streams, h.sent = true, w.changes.confirmed
	})
	if err != nil {
		return fleet.Server{}, err
	}
	return *server, nil
}

// Begin uses up the number of a transaction.
func (h *holder) Begin(ctx context.Context) (xid uint64, confirmed pglogrepl.LSN, err error) {
	begun := &[2]uint64{}
	err = h.ask(ctx, "begins", func(w *World) { *begun = [2]uint64{w.useXID(), w.changes.confirmed} })
	if err != nil {
		return 0, 0, err
	}
	return begun[0], pglogrepl.LSN(begun[1]), nil
}

// Emit writes a message, and flushes.
func (h *holder) Emit(ctx context.Context, prefix, content string) error {
	return h.ask(ctx, "emits "+prefix+" "+content, func(w *World) {
		w.emit(prefix == follower.MessagePrefix)
	})
}

// Receive returns what has been sent. What is so at once comes before what may be chance.
func (h *holder) Receive(ctx context.Context, wake time.Time) (r follower.Received, err error) {
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	select {
	case r = <-h.stream:
		return r, nil
	default:
	}
	select {
	case <-h.cut:
		return r, io.EOF
	default:
	}
	timer := time.NewTimer(time.Until(wake))
	defer timer.Stop()
	select {
	case r = <-h.stream:
	case <-timer.C:
	case <-h.cut:
		err = io.EOF
	case <-ctx.Done():
		err = ctx.Err()
	}
	return r, err
}

// Reply confirms.
func (h *holder) Reply(s pglogrepl.StandbyStatusUpdate) error {
	h.world.Post(h.call(fmt.Sprint("confirms ", s), func(w *World) {
		if w.changes.slot != h {
			return
		}
		w.changes.confirmed = max(w.changes.confirmed, min(uint64(s.WALFlushPosition), w.flushed))
		h.send()
		if s.ReplyRequested && len(h.stream) < cap(h.stream) {
			h.stream <- follower.Received{Position: pglogrepl.LSN(h.sent)}
		}
	}))
	return nil
}

// Drop drops the slot.
func (h *holder) Drop(ctx context.Context) error {
	return h.ask(ctx, "drops the slot", func(w *World) {
		if w.changes.slot == h {
			w.changes.loseSlot(w)
		}
	})
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
	case c.slot != nil && w.Happens(followerPauses, 500):
		c.slot.pause(ticks(2 * boundTicks))
	case c.slot != nil && w.Happens(FollowerDies, 1500):
		w.Tracef("the follower dies")
		c.kill(c.slot)
		c.takenAt = w.in(2 * boundTicks)
	case c.slot != nil && w.Happens(followerIsOvertaken, 3000):
		w.Tracef("the follower is overtaken")
		c.slot.pause(ticks(2 * boundTicks))
		c.slot, c.takenAt = nil, w.in(boundTicks)
	case c.slot != nil && w.Happens(SlotIsLost, 4000):
		c.loseSlot(w)
	case c.slot != nil && (w.Happens(followsAnotherList, 4000) || c.another && w.Chance(300)):
		c.kill(c.slot)
		c.another, c.takenAt = !c.another, w.in(boundTicks/2)
		w.Tracef("the next follower lacks the list: %t", c.another)
	case c.slot != nil && w.Happens(trimmed, 300): // perhaps under a node that is behind
		n, kept := c.server.Trim(w.followed.LogPrefix()+"log:"+c.epoch(w), func(of int) int { return w.r.IntN(of + 1) })
		w.Tracef("%s trims %d entries and keeps %d", c.server.Name, n, kept)
	case w.Happens(RedisLosesAll, 2500):
		c.lose(w)
	case w.Happens(redisFailsOver, 2500):
		c.failOver(w)
		if c.slot != nil && w.Chance(4) { // else it finds the new master later
			c.kill(c.slot)
		}
	case w.Happens(mirrorLags, 5):
		c.mirror.Follow(c.server, w.few())
	case w.Happens(dumps, 500):
		c.dump = c.server.Fork("dump", 0)
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
