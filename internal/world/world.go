// Package world is the surroundings of nodes, for tests: one Postgres, one Redis with the log of changes, and a follower, in
// virtual time, as one seed decides. Nodes are the real ones, or their cores; whoever plays a world makes them, and judges what
// they answer by the moments of Postgres.
//
//	Postgres: transactions, which become visible in another order than that of the WAL; a standby; crashes, promotions
//	   │ WAL                                      ▲ Read, ReadStandby
//	follower ──► log of an epoch ──► Subscriber of a node ──► its caches
//	             on a Redis, with all other keys, which it may lose
//
// It has no goroutine, and no clock but the one it is given: the same seed gives the same trace. Goroutines of nodes wait for the clock or
// for a call, in a bubble. Once all of them wait, whoever plays the world has it Deliver the calls, and lets time Elapse.
package world

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
)

// World is one run.
type World struct {
	*Dice
	*Postgres
	ways
	changes  changes
	ctx      context.Context
	followed *fleet.Followed // of those who write the log
	lists    *list.Set
	slept    atomic.Int64 // a time.Duration, which nodes read while machines sleep
	Standby  bool         // may be asked
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
	w.Dice = NewDice(of, func() time.Time { return time.Now().Add(time.Duration(w.slept.Load())) })
	w.Cast()
	w.Postgres = newPostgres(Shapes[of.Seed%uint64(len(Shapes))], w.Dice)
	w.Standby = w.Chance(2)
	w.ctx, w.followed, w.lists = context.Background(), &fleet.Followed{}, &list.Set{Lists: []*list.List{w.List}}
	w.followed.SetServer(w.Server())
	w.ways.Network, w.ways.changes = NewNetwork(w.Dice), &w.changes
	w.changes.server = NewRedis(serverName(0), w.now)
	w.changes.mirror = w.changes.server.mirror("mirror")
	w.changes.run, w.changes.timeline, w.changes.fresh = w.Run, w.Timeline, true
	return w
}

func serverName(n int) string { return fmt.Sprint("server ", n) }

// Now is the time in the world, which goes on while machines sleep.
func (w *World) Now() time.Time { return w.now() }

// Step lets what is no node go on. Time passes between two steps, about one tick.
func (w *World) Step() {
	w.Cast()
	w.step()
	w.changes.step(w)
	w.changes.accidents(w)
	w.move()
	w.wake()
	if w.count%256 == 0 {
		w.forget(w.at(-100 * boundTicks))
	}
}

// Calm lets what is under way end. From then on nothing happens but what a player asks for.
func (w *World) Calm() {
	w.calm = true
	w.endAll()
	c := &w.changes
	if c.another && c.slot != nil {
		c.kill(c.slot)
	}
	c.another, c.takenAt = false, w.now()
	for _, h := range c.holders {
		h.access.pausedTo = time.Time{}
	}
	w.Tracef("nothing happens any more")
}

// Close ends the followers.
func (w *World) Close() { w.changes.close() }

// Trim leaves few entries in the log.
func (w *World) Trim() {
	c := &w.changes
	c.server.Trim(w.followed.LogPrefix()+"log:"+c.epoch(w), func(of int) int { return max(0, of-16) })
}

// Sleep lets all machines sleep, while Postgres goes on.
func (w *World) Sleep(d time.Duration) {
	w.ways.sleep()
	w.slept.Add(int64(d / 8))
	w.step()
	w.slept.Add(int64(d - d/8))
	if w.changes.slot != nil && d > 2*time.Second { // Postgres gives it up
		w.changes.leave(w.changes.slot)
	}
	w.awake = w.now().Add(time.Second)
	w.Tracef("the machines slept for %s", d)
}

// Log is the log of changes as a node uses it. A read returns few entries, so that some are cut.
func (w *World) Log(a *Access, followed *fleet.Followed) *changefeed.Redis {
	return changefeed.NewRedis(changefeed.RedisOptions{Client: a.Client, Followed: followed, Lists: w.lists, Batch: 8})
}

// Elapsed is how long nodes have run.
func (w *World) Elapsed() time.Duration { return w.now().Sub(w.began) - time.Duration(w.slept.Load()) }

// Servers are those of Redis that nodes may use.
func (w *World) Servers() []*Redis { return []*Redis{w.changes.server, w.changes.mirror} }
