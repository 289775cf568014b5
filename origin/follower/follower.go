// Package follower reads what Postgres commits, through a logical replication
// slot, and writes it to the log that all nodes read. Whoever holds the slot
// is the follower: only one can, so holding it is the election.
//
//	walsender ── pgoutput ──► decoder ── change ──────┐
//	                                                  ├─ one order ──► log
//	every 33 ms: LSN and snapshot,                    │
//	             when decoded that far ── heartbeat ──┘
//
// Why heartbeats: a commit is sent when its WAL is flushed, before new
// snapshots see it. A change is therefore unsettled until a snapshot taken on
// the primary sees it, and the heartbeat that carries the snapshot proves that
// everything visible when it was taken has been published before it.
package follower

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
)

const (
	// callTimeout bounds each call to the log and to the primary.
	callTimeout = time.Second
	// retryFirst and retryLast: the pause after a failure doubles between them.
	retryFirst = 100 * time.Millisecond
	retryLast  = 2 * time.Second
	// incapableEvery is how often it is looked whether what is missing was mended.
	incapableEvery = 2 * time.Second
)

// ErrIncapable: this Postgres, or this user, does not let changes be followed,
// for the reason told.
var ErrIncapable = errors.New("changes cannot be followed")

// Options of a Follower.
type Options struct {
	DatabaseURL string
	Region      string // whose slot is meant, where several share the database; empty = the only one
	Log         changefeed.Log
	Followed    *changefeed.Followed // learns from the primary what is followed; nil = nobody wants to know
	LogKept     time.Duration        // how much of the log is kept
	Silence     func() time.Duration // since this node read a heartbeat
	Logger      *slog.Logger
}

// Follower follows while it holds the slot and stands by while it does not.
type Follower struct {
	options   Options
	start     time.Time     // beat is a distance from it
	period    time.Duration // of heartbeats
	streaming string        // "on"; tests and benchmarks compare it with "off"

	following atomic.Bool
	lag       atomic.Uint64 // bytes
	lagTime   atomic.Int64  // nanoseconds
	retained  atomic.Uint64 // bytes
	commits   atomic.Uint64
	looks     atomic.Uint64 // at a slot that another node may hold
	terms     atomic.Uint64
	beat      atomic.Int64 // when a heartbeat was last published; 0 = never

	mu  sync.Mutex // guards why
	why error      // ErrIncapable, with the reason
}

// New makes a follower that Run starts.
func New(o Options) *Follower {
	if o.Followed == nil {
		o.Followed = &changefeed.Followed{}
	}
	return &Follower{options: o, start: time.Now(), period: heartbeatEvery, streaming: "on"}
}

// Stats are a follower's numbers.
type Stats struct {
	Following    bool
	Lag          uint64        // bytes of WAL the primary was ahead of what was decoded, at the last heartbeat
	LagTime      time.Duration // how long the last heartbeat published had to wait until so much was decoded
	HeartbeatAge time.Duration // since this node published one; zero while it does not follow
	Retained     uint64        // bytes of WAL that the slot keeps, as last seen
	Commits      uint64        // changes published by this node
	Terms        uint64        // terms begun by this node
}

// Stats returns the present numbers.
func (f *Follower) Stats() Stats {
	s := Stats{Following: f.following.Load(), Retained: f.retained.Load(), Commits: f.commits.Load(), Terms: f.terms.Load()}
	if beat := f.beat.Load(); s.Following {
		s.Lag, s.LagTime, s.HeartbeatAge = f.lag.Load(), time.Duration(f.lagTime.Load()), time.Since(f.start)-time.Duration(beat)
	}
	return s
}

// Incapable tells why changes cannot be followed here; nil while they may be.
func (f *Follower) Incapable() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

func (f *Follower) judge(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why = why
}

// Run follows, or waits for its turn, until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	pause, told := retryFirst, ""
	for ctx.Err() == nil {
		began := time.Now()
		err := f.attend(ctx)
		f.following.Store(false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > 2*retryLast { // it went well for a while
			pause, told = retryFirst, ""
		}
		switch {
		case errors.Is(err, errHeld):
			pause = retryFirst
		case errors.Is(err, ErrIncapable):
			f.judge(err) // who uses the follower tells it
			pause = incapableEvery
		case errors.As(err, new(*changefeed.Error)), errors.As(err, new(*changefeed.TimelineError)): // whoever uses the log or Followed says so
		case err.Error() != told: // a server that is away is told once
			told = err.Error()
			f.options.Logger.Warn("following changes was interrupted", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, retryLast)
	}
}

// attend connects, waits until nobody holds the slot, and follows until
// something fails. It returns an error always.
func (f *Follower) attend(ctx context.Context) error {
	p, err := connectPrimary(ctx, f.options.DatabaseURL, f.options.Region)
	if err != nil {
		return err
	}
	defer p.close()
	f.options.Followed.Found(p.identity, p.timeline)
	for w, fresh := (watch{}), false; ; {
		if err := f.options.Followed.OldTimeline(); err != nil {
			return err // the next connection may meet the new primary
		}
		f.looks.Add(1)
		s, err := p.slot(ctx)
		if err != nil {
			return err
		}
		f.retained.Store(s.retained)
		switch {
		case s.state == slotFree:
			return f.follow(ctx, p, fresh)
		case s.state == slotLost:
			f.options.Logger.Warn("the slot fell behind max_slot_wal_keep_size and is made anew", "slot", p.slotName)
			err = p.dropSlot(ctx)
		case s.state == slotMissing:
			if err = p.checkPrerequisites(ctx); err == nil {
				late := time.AfterFunc(createTimeout, func() {
					f.options.Logger.Warn("the new slot waits for the end of write transactions that have been open for long")
				})
				fresh, err = p.createSlot(ctx, createPatience)
				late.Stop()
			}
		default:
			fresh = false
			f.judge(nil) // another node can
			if h, known := f.holder(ctx, s); w.stalled(time.Now(), h, known) {
				f.options.Logger.Warn("the follower answers neither Postgres nor the log: ending its connection", "pid", s.holder)
				p.end(ctx, s.holder)
			}
		}
		if err != nil {
			return err
		}
		if s.state == slotMissing && fresh {
			continue // the slot is there for this node to take
		}
		if err := f.waitPoll(ctx); err != nil {
			return err
		}
	}
}

// follow takes the slot and begins a term. Where the slot does not tell what it
// should, it is made anew.
func (f *Follower) follow(ctx context.Context, p *primary, fresh bool) error {
	v, err := p.look(ctx, "") // first: what is changed later is noticed
	if err != nil {
		return err
	}
	if err := p.checkPrerequisites(ctx); errors.Is(err, errIncomplete) {
		return errors.Join(err, p.dropSlot(ctx))
	} else if err != nil {
		return err
	}
	t := newTerm(f, p)
	t.use(v.catalog)
	present, err := t.logEpoch(ctx) // whoever cannot reach the log leaves the slot to others
	if err != nil {
		return err
	}
	if t.sender, err = p.replicate(ctx, f.streaming); err != nil {
		return err
	}
	if t.sender == nil {
		return errHeld // another node was faster
	}
	defer closeConn(t.sender)
	f.options.Followed.Found(p.identity, p.timeline) // as the walsender knows it
	err = t.take(ctx, present, fresh)
	if err == nil {
		f.terms.Add(1)
		f.beat.Store(int64(time.Since(f.start)))
		f.following.Store(true)
		f.judge(nil)
		f.options.Logger.Info("following changes", "epoch", t.epoch, "term", t.last.Term)
		err = t.loop(ctx)
	}
	if code(err) == undefinedObject {
		// The publication was missing when a change was written, and is
		// missing for ever in the WAL that the slot still has to decode.
		if defect := p.checkPrerequisites(ctx); defect != nil {
			err = defect
		}
	} else if !errors.Is(err, errRepublished) && !errors.Is(err, errIncomplete) {
		return err
	}
	closeConn(t.sender)
	f.options.Logger.Warn("changes were written that may not have been published: the slot is made anew", "error", err)
	return errors.Join(err, p.dropSlot(ctx))
}
