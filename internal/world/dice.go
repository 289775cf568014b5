package world

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// Tick is the unit of time in a world. A fleet's freshness bound is boundTicks of them.
const (
	Tick       = 4 * time.Millisecond
	boundTicks = 100
	Bound      = boundTicks * Tick
)

func ticks(n int) time.Duration { return time.Duration(n) * Tick }

// Kind is a kind of event that a run may go without, so that the smallest run that fails can be found.
type Kind uint8

// The kinds.
const (
	begins Kind = iota // a transaction
	rollsBack
	unnamed // the log lacks a text, a name or rows of a transaction
	changesKeys
	schedules // the end of a key or a workspace
	truncates
	staysOpen // a transaction, for four bounds
	waitsForStandby
	standbyLags
	crash
	promotion
	livesOn // the primary that another has replaced
	followerPauses
	FollowerDies
	followerIsOvertaken
	SlotIsLost
	followsAnotherList
	trimmed
	RedisLosesAll
	redisFailsOver
	mirrorLags
	dumps
	redisIsSlow
	redisCuts // a call gets no answer
	nodePauses
	sessionEnds
	readsMirror
	entryIsDamaged
	Asks     // a request
	Cuts     // a call that gets no answer
	Slow     // a call that takes long
	Restarts // of a node
	ClockSteps
	Sleeps   // all machines, together
	Stores   // a checkpoint
	Verifies // a page that a node holds
	Tracks   // a client that keeps a copy asks for a page
	GivesUp  // its request
	GoesBack // to a cursor of before

	// Of keys.
	Uses        // a request with one
	LooksInVain // a node's look-ups fail for some time

	// Of limits.
	Crashes       // of a node
	Freezes       // likewise: its process stops for a while
	Leaps         // the clock of a node
	CutsOff       // a node from Redis
	Deafens       // a node gets no answers
	Joins         // a node
	Leaves        // likewise
	Loses         // messages
	Hangs         // Redis
	SlowsDown     // Redis
	RedisSteps    // its clock
	LosesLimits   // Redis: all, the latest, or all since a dump
	ChangesPolicy // the rate and the burst of a key
	ChangesQuota
	ChangesLoad

	// Of the doors of nodes.
	Drains
	HangsUp // a client

	// Also of keys.
	Mistypes // a client: what it sends is no key
	Floods   // a client sends keys that it makes up
	kinds
)

var kindNames = [kinds]string{"begins", "rolls back", "unnamed", "changes keys", "schedules", "truncates", "stays open", "waits for a standby",
	"standby lags", "crash", "promotion", "lives on",
	"follower pauses", "follower dies", "follower is overtaken", "slot is lost", "follows another list", "trimmed", "Redis loses all", "Redis fails over",
	"mirror lags", "dumps", "Redis is slow", "Redis cuts", "node pauses", "session ends", "reads the mirror", "entry is damaged", "asks", "cuts", "slow",
	"restarts", "clock steps", "sleeps", "stores", "verifies", "tracks", "gives up", "goes back",
	"uses", "looks in vain", "crashes", "freezes", "leaps", "cuts off", "deafens", "joins", "leaves", "loses messages",
	"Redis hangs", "Redis slows down", "clock of Redis steps", "Redis loses limits", "changes a policy", "changes a quota", "changes the load",
	"drains", "hangs up", "mistypes", "floods"}

func (k Kind) String() string { return kindNames[k] }

// Event is all that happens of a kind in a step.
type Event struct {
	Step int // from 1; 0 = in any
	Kind Kind
}

func (e Event) String() string { return fmt.Sprintf("%d: %s", e.Step, e.Kind) }

// Dice decide what happens. They are cast anew for each step, so what a run goes without changes as little as possible of the
// rest.
type Dice struct {
	r       *rand.Rand
	source  *rand.PCG
	own     rand.PCG // of Happens
	seed    uint64
	count   int           // the number of the step
	asked   [kinds]uint64 // in the step, whether such an event happens
	often   [kinds]bool   // what is rare elsewhere is not so in this run: few faults need one rare event, most need two together
	now     func() time.Time
	calm    bool        // nothing happens any more
	forced  [kinds]bool // but for these, once
	without map[Event]bool
	had     map[Event]bool // what has happened; nil = it is not noted
	log     io.Writer      // nil = none
	began   time.Time
}

// rare is an event that happens once in so many times, or less often.
const rare = 200

// NewDice makes the dice of a run, whose time is now.
func NewDice(of *Play, now func() time.Time) *Dice {
	d := &Dice{seed: of.Seed, source: rand.NewPCG(of.Seed, 0), now: now, began: now(), without: of.Without, had: of.Had, log: of.Log}
	d.r = rand.New(d.source)
	for k := range d.often {
		d.often[k] = d.Chance(4)
	}
	return d
}

// Cast begins a step.
func (d *Dice) Cast() {
	d.count++
	d.asked = [kinds]uint64{}
	d.source.Seed(d.seed, uint64(d.count))
}

// Chance is true once in so many times.
func (d *Dice) Chance(oneIn int) bool { return d.r.IntN(oneIn) == 0 }

// Happens reports whether an event happens now, which does once in so many times. It does not depend on what else happens in
// the step.
func (d *Dice) Happens(k Kind, oneIn int) bool {
	if oneIn >= rare && d.often[k] {
		oneIn /= 10
	}
	d.asked[k]++
	if d.forced[k] {
		d.forced[k] = false
		return true
	}
	d.own.Seed(d.seed, uint64(d.count)<<32|uint64(k)<<16|d.asked[k])
	if d.calm || d.own.Uint64()%uint64(oneIn) != 0 {
		return false
	}
	e := Event{d.count, k}
	if d.without[e] || d.without[Event{Kind: k}] {
		return false
	}
	if d.had != nil {
		d.had[e] = true
	}
	return true
}

// Force has an event of a kind happen when it may the next time.
func (d *Dice) Force(k Kind) { d.forced[k] = true }

// in returns a time at most so many ticks from now, and at the time exactly as many.
func (d *Dice) in(n int) time.Time {
	return d.now().Add(d.In(n))
}

func (d *Dice) at(n int) time.Time { return d.now().Add(ticks(n)) }

// few is a number of writes to Redis, of which most are of pages, and few of the log.
func (d *Dice) few() int { return d.r.IntN(1 << d.r.IntN(8)) }

func (d *Dice) reached(t time.Time) bool { return !d.now().Before(t) }

func (d *Dice) shuffle(n int, swap func(i, j int)) { d.r.Shuffle(n, swap) }

// Tracef writes a line of the trace.
func (d *Dice) Tracef(format string, of ...any) {
	if d.log != nil {
		fmt.Fprintf(d.log, "%6d %9.3f  %s\n", d.count, d.now().Sub(d.began).Seconds(), fmt.Sprintf(format, of...))
	}
}

// Rand is cast anew for each step.
func (d *Dice) Rand() *rand.Rand { return d.r }

// In returns a duration of at most so many ticks.
func (d *Dice) In(n int) time.Duration { return time.Duration(d.r.Int64N(int64(ticks(n)) + 1)) }

// Traces reports whether somebody reads the trace.
func (d *Dice) Traces() bool { return d.log != nil }
