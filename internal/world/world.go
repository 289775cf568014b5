// Package world is the surroundings of nodes, for tests: one Postgres, one Redis with the log of changes, and a follower, in
// virtual time, as one seed decides. Nodes are the real ones, or their cores; whoever plays a world makes them, and judges what
// they answer by the moments of Postgres.
//
//	Postgres: transactions, which become visible in another order than that of the WAL; a standby; crashes, promotions
//	   │ WAL                                      ▲ Read, ReadStandby
//	follower ──► log of an epoch ──► Reader ──► Subscription of a node ──► its caches
//	             on a server, which may lose it
//
// It has no goroutine, and no clock but the one it is given: the same seed gives the same trace.
package world

import (
	"fmt"
	"io"
	"slices"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
)

// World is one run.
type World struct {
	*Dice
	*Postgres
	changes changes
	hurried bool // a node has asked for heartbeats
	slept   time.Duration
	Standby bool // may be asked
}

// Play says which run, and what it goes without.
type Play struct {
	Seed    uint64
	Steps   int
	Without map[Event]bool
	Had     map[Event]bool // gets what has happened; nil = it is not noted
	Log     io.Writer      // gets the trace; nil = none
}

// New begins a run.
func New(of *Play) *World {
	w := &World{}
	w.Dice = NewDice(of, func() time.Time { return time.Now().Add(w.slept) })
	w.Cast()
	w.Postgres = newPostgres(Shapes[of.Seed%uint64(len(Shapes))], w.Dice)
	w.Standby = w.chance(2)
	w.changes.server = newServer(serverName(0), "")
	w.changes.mirror = w.changes.server.fork("mirror", 0)
	w.changes.run, w.changes.needEpoch = w.Run, true
	return w
}

func serverName(n int) string { return fmt.Sprint("server ", n) }

// Now is the time in the world, which goes on while machines sleep.
func (w *World) Now() time.Time { return w.now() }

// Step lets what is no node go on. Time passes between two steps, about one tick.
func (w *World) Step() {
	w.Cast()
	w.step()
	w.changes.take(w)
	for _, f := range w.changes.followers {
		f.follow(w)
	}
	w.changes.followers = slices.DeleteFunc(w.changes.followers, func(f *follower) bool { return f.ended })
	w.changes.accidents(w)
	if w.count%256 == 0 {
		w.forget(w.at(-100 * boundTicks))
	}
}

// Sleep lets all machines sleep, while Postgres goes on.
func (w *World) Sleep(d time.Duration) {
	w.slept += d / 8
	w.step()
	w.slept += d - d/8
	w.trace("the machines slept for %s", d)
}

// Hurry asks the follower for a heartbeat.
func (w *World) Hurry() { w.hurried = true }

// Server is the primary.
func (w *World) Server() fleet.Server {
	return fleet.Server{Identity: fleet.Identity{System: "7400000000000000001", Database: 5, Name: "shop"}, Timeline: uint32(w.Timeline), StartedAt: w.Run}
}

// StoreCheckpoint stores a node's checkpoint with the log.
func (w *World) StoreCheckpoint(c *changefeed.Checkpoint) {
	w.changes.server.checkpoint[c.Epoch] = c
}

// Reader reads the log for a subscription, as changefeed.Subscriber does.
type Reader struct {
	Subscription *changefeed.Subscription
	node         int
	world        *World
	observe      func(epoch string) (readable bool)
	server       *server   // that it reads from
	looked       time.Time // when it last looked at the epoch; zero = it must
	restored     time.Time // when it last looked for a checkpoint
	reading      *reading
	pausedTo     time.Time
}

// reading is a read of the log under way.
type reading struct {
	epoch         string
	after         changefeed.Position
	began         time.Time
	waits         time.Duration // for entries
	answered, cut bool
	entries       []changefeed.Entry
}

// NewReader makes a reader for a new node, which has a number.
func (w *World) NewReader(node int, observe func(epoch string) bool, listeners ...changefeed.Listener) *Reader {
	n := &Reader{Subscription: changefeed.NewSubscription(listeners...), node: node, world: w, observe: observe, server: w.changes.server}
	n.Subscription.NewSession(n.server.name)
	return n
}

// Step lets the reader go on.
func (n *Reader) Step() {
	w := n.world
	for w.reached(n.pausedTo) && !w.chance(4) {
		if w.happens(nodePauses, 400) {
			n.pausedTo = w.in(boundTicks)
			w.trace("the reader of node %d pauses", n.node)
		}
		if w.happens(sessionEnds, 500) || n.server != w.changes.server && w.chance(50) { // the connection ends, and with it a read
			n.server = w.changes.server
			if w.happens(readsMirror, 5) {
				n.server = w.changes.mirror
			}
			n.reading, n.looked = nil, time.Time{}
			n.Subscription.NewSession(n.server.name)
			w.trace("node %d reads from %s", n.node, n.server.name)
		}
		n.readOn()
	}
}

func (n *Reader) readOn() {
	w, r := n.world, n.reading
	switch {
	case r == nil:
		n.begin()
	case !r.answered:
		r.entries, r.cut = n.server.since(r.epoch, r.after)
		for i := range r.entries {
			if w.happens(entryIsDamaged, 1500) { // or is of another version
				r.entries[i] = changefeed.Entry{Position: r.entries[i].Position}
				w.trace("entry %s is damaged for node %d", r.entries[i].Position, n.node)
			}
		}
		r.answered = len(r.entries) > 0 || time.Since(r.began) > r.waits
	default:
		n.Subscription.Apply(r.began, r.entries, r.cut)
		n.reading = nil
		if len(r.entries) == 0 {
			n.looked = time.Time{}
		}
	}
}

// begin begins a read.
func (n *Reader) begin() {
	epoch, after := n.Subscription.Next()
	if time.Since(n.looked) > time.Second {
		n.looked = time.Now()
		present := n.server.epoch
		if present != "" && n.observe(present) {
			n.Subscription.Follow(present)
			epoch, after = n.Subscription.Next()
		}
	}
	if epoch != "" && !n.observe(epoch) {
		n.Subscription.Follow("")
		epoch = ""
	}
	if epoch == "" {
		n.looked = time.Time{}
		return
	}
	if time.Since(n.restored) > time.Second {
		n.restored = time.Now()
		c := n.server.checkpoint[epoch]
		if c != nil {
			n.Subscription.Restore(c)
		}
	}
	n.reading = &reading{epoch: epoch, after: after, began: time.Now(), waits: n.world.In(boundTicks / 5)}
}

// Elapsed is how long nodes have run.
func (w *World) Elapsed() time.Duration { return w.now().Sub(w.began) - w.slept }
