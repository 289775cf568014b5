// Package follower reads commits from Postgres through a logical replication
// slot and publishes them in the log that all nodes read. The node that holds
// the slot is the follower. Only one can hold it, so the slot is the election.
//
//	walsender ── pgoutput ──► decoder ── change ──────┐
//	                                                  ├─ one order ──► log
//	every 33 ms: LSN and snapshot,                    │
//	             when decoded that far ── heartbeat ──┘
//
// Postgres sends a commit when its WAL is flushed, before new snapshots see it.
// A change is therefore unsettled until a snapshot of the primary sees it. A
// heartbeat carries such a snapshot, and proves that everything visible when it
// was taken has been published before the heartbeat.
//
// A change names whose rows it touches, in each list of a relation, and the rows: their keys, places in orders,
// values of filters and texts, as the transaction left them. If these are not known for
// certain, it names no rows: any of them may have changed. To name too much
// is safe. To name too little is not, because pages that no named row concerns are kept.
//
// # A change is published: at most 9 files
//
// On the node that holds the slot:
//
//	origin/follower/term.go origin/follower/follower.go origin/follower/decode.go
//	origin/follower/relation.go internal/list/row.go internal/list/value.go
//	internal/changefeed/entry.go internal/changefeed/codec.go internal/changefeed/redis.go
package follower

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/origin/postgres"
)

const (
	// retryFirst and retryLast: the pause after a failure doubles between them.
	retryFirst = 100 * time.Millisecond
	retryLast  = 2 * time.Second
	// idleInterval is the least time between two polls of the slot by a waiting node
	// while heartbeats arrive. It is long, so that a large fleet costs the primary little.
	idleInterval = 10 * time.Second
	// silenceThreshold is how long no heartbeat must have come before a waiting node
	// polls at once: five periods.
	silenceThreshold = 5 * heartbeatEvery
	// pollFirst and pollLast bound the time between two polls after silenceThreshold, about a
	// tenth of the silence: the slot is taken soon after the holder's end, and a fleet
	// without heartbeats does not flood the primary.
	pollFirst = 20 * time.Millisecond
	pollLast  = 250 * time.Millisecond
)

// ErrIncapable says that a prerequisite for following changes is missing. The error that
// wraps it says which.
var ErrIncapable = errors.New("changes cannot be followed")

// Options of a Follower.
type Options struct {
	DatabaseURL string
	Lists       *list.Set // whose changes are followed, and those of the keys
	Log         changefeed.Log
	Followed    *fleet.Followed      // receives what is followed; its region has its own slot
	LogKept     time.Duration        // how long the log keeps entries
	Silence     func() time.Duration // the time since this node last read a heartbeat
	Logger      *slog.Logger
}

// Follower follows while it holds the slot, and waits for it otherwise.
type Follower struct {
	options Options
	period  time.Duration // of heartbeats
	warned  bool          // unlimitedSlot was logged; used by Run's goroutine only

	mu        sync.Mutex
	stats     Stats     // except HeartbeatAge; guarded by mu
	heartbeat time.Time // when this node last published one; guarded by mu
	incapable error     // ErrIncapable, with the reason; guarded by mu
}

// New makes a follower that Run starts.
func New(o Options) *Follower { return &Follower{options: o, period: heartbeatEvery} }

// Run follows, or waits for its turn, until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	pause, logged := retryFirst, false
	for ctx.Err() == nil {
		began := time.Now()
		err := f.waitForSlot(ctx)
		f.update(func() { f.stats.Following = false })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > 2*retryLast { // it followed, or waited, for a while
			pause, logged = retryFirst, false
		}
		switch {
		case errors.Is(err, errHeld):
			pause = retryFirst
		case errors.Is(err, ErrIncapable):
			f.update(func() { f.incapable = err }) // cmd/listedge logs it
			pause = retryLast
		case errors.As(err, new(*changefeed.Error)), errors.As(err, new(*fleet.TimelineError)): // cmd/listedge logs these
		case !logged: // one outage has several errors
			logged = true
			level := slog.LevelWarn
			if errors.Is(postgres.Classify(err), postgres.ErrUnavailable) { // cmd/listedge warns that Postgres is down
				level = slog.LevelInfo
			}
			f.options.Logger.Log(ctx, level, "following changes was interrupted", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, retryLast)
	}
}

// waitForSlot connects, waits until no node holds the slot, and follows until
// something fails. It always returns an error.
func (f *Follower) waitForSlot(ctx context.Context) error {
	p, err := connectPrimary(ctx, f.options.DatabaseURL, f.options.Followed.Region)
	if err != nil {
		return err
	}
	defer p.close()
	f.options.Followed.SetServer(p.server)
	if p.unlimited && !f.warned {
		f.options.Logger.Warn(unlimitedSlot, "do", unlimitedSlotDo)
	}
	f.warned = p.unlimited
	for fresh := false; ; {
		if err := f.options.Followed.OldTimeline(); err != nil {
			return err // the next connection may meet the new primary
		}
		s, err := p.slot(ctx)
		if err != nil {
			return err
		}
		f.update(func() { f.stats.Retained = s.retained })
		switch {
		case s.lost:
			f.options.Logger.Warn("the slot exceeded max_slot_wal_keep_size: making a new one", "slot", p.slotName)
			err = p.dropSlot(ctx)
		case !s.exists:
			err = p.checkPrerequisites(ctx, f.options.Lists)
			if err == nil {
				slow := time.AfterFunc(createSlow, func() {
					f.options.Logger.Warn("the new slot waits for the end of write transactions that have been open for long")
				})
				fresh, err = p.createSlot(ctx, createByNodeTimeout)
				slow.Stop()
			}
		case !s.held:
			return f.follow(ctx, p, fresh)
		default:
			fresh = false
			f.update(func() { f.incapable = nil }) // another node follows; if it is frozen, Postgres ends its connection after senderTimeout
		}
		if err != nil {
			return err
		}
		if !s.exists && fresh {
			continue // to take it
		}
		if err := f.waitPoll(ctx); err != nil {
			return err
		}
	}
}

// waitPoll waits until it is time to poll the slot again: when heartbeats have
// stopped for silenceThreshold, when the node's server turns out to be an old
// primary, or after idleInterval. Jitter keeps nodes from polling together.
func (f *Follower) waitPoll(ctx context.Context) error {
	idleUntil := time.Now().Add(idleInterval + rand.N(idleInterval/5))
	for {
		silence := f.options.Silence()
		poll := min(max(silence/10, pollFirst), pollLast)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(0, silenceThreshold-silence) + poll/2 + rand.N(poll)):
		}
		if f.options.Silence() > silenceThreshold || time.Now().After(idleUntil) || f.options.Followed.OldTimeline() != nil {
			return nil
		}
	}
}

// follow takes the slot and begins a term. A slot that may not send all changes
// is dropped: a new one begins a new epoch.
func (f *Follower) follow(ctx context.Context, p *primary, fresh bool) error {
	v, err := readView(ctx, p, followedOf(f.options.Lists), "") // before the check, so that later changes of the catalog are noticed
	if err != nil {
		return err
	}
	if err := p.checkPrerequisites(ctx, f.options.Lists); errors.Is(err, errIncomplete) {
		return errors.Join(err, p.dropSlot(ctx))
	} else if err != nil {
		return err
	}
	t := term{Follower: f, primary: p, tables: followedOf(f.options.Lists), decoder: newDecoder(f.options.Lists)}
	t.setCatalog(v)
	t.nameRows()
	present, err := call(ctx, f.options.Log.Epoch) // a node without the log leaves the slot to others
	if err != nil {
		return err
	}
	t.sender, err = p.replicate(ctx)
	if err != nil {
		return err
	}
	defer closeConn(t.sender)
	f.options.Followed.SetServer(p.server)
	err = t.begin(ctx, present, fresh)
	if err == nil {
		f.update(func() {
			f.stats.Terms++
			f.stats.Following, f.heartbeat, f.incapable = true, time.Now(), nil
		})
		f.options.Logger.Info("following changes", "epoch", t.epoch, "term", t.last.Term)
		err = t.loop(ctx)
	}
	if postgres.Code(err) == undefinedObject {
		// A change was written while the publication was missing. In the WAL that
		// the slot has to decode it is missing for ever.
		if defect := p.checkPrerequisites(ctx, f.options.Lists); defect != nil {
			err = defect
		}
	} else if !errors.Is(err, errPublicationChanged) && !errors.Is(err, errIncomplete) {
		return err
	}
	closeConn(t.sender)
	f.options.Logger.Warn("some changes may not have been published: making a new slot", "error", err)
	return errors.Join(err, p.dropSlot(ctx))
}

const (
	unlimitedSlot   = "max_slot_wal_keep_size is not set: while no node follows, the slot may fill the disk of the primary"
	unlimitedSlotDo = "set max_slot_wal_keep_size to what the disk can spare, and reload"
)

// Leave drops the slot if Postgres would keep WAL for it without limit. It is called when this
// node has stopped and no other node of its fleet runs. The next node makes a new slot.
func (f *Follower) Leave(ctx context.Context) {
	if !f.warned {
		return
	}
	p, err := connectPrimary(ctx, f.options.DatabaseURL, f.options.Followed.Region)
	if err != nil {
		return
	}
	defer p.close()
	if p.unlimited && p.tryDropSlot(ctx) == nil {
		f.options.Logger.Info("dropped the slot, because no other node runs and "+unlimitedSlot, "slot", p.slotName)
	}
}

// Stats are a follower's numbers.
type Stats struct {
	Following    bool
	Lag          uint64        // bytes of WAL that were not decoded when the last heartbeat was prepared
	LagTime      time.Duration // how long the last heartbeat waited until its LSN was decoded
	HeartbeatAge time.Duration // since this node published one; zero while it does not follow
	Retained     uint64        // bytes of WAL that the slot retains, as last seen
	Commits      uint64        // changes published by this node
	Terms        uint64        // terms begun by this node
}

// Stats returns the present numbers.
func (f *Follower) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	if s.Following {
		s.HeartbeatAge = time.Since(f.heartbeat)
	} else {
		s.Lag, s.LagTime = 0, 0
	}
	return s
}

// Incapable returns why changes cannot be followed here; nil = they can, as far as is known.
func (f *Follower) Incapable() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.incapable
}

// update changes what Stats and Incapable return.
func (f *Follower) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}
