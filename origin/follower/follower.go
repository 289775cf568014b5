// Package follower reads commits from Postgres through a logical replication
// slot and publishes them in the log that all nodes read. The node that holds
// the slot is the follower. Only one can hold it, so the slot is the election.
//
// A persistent slot keeps the WAL for the next follower, which goes on where this one ended. Where nothing
// bounds that WAL, the slot is temporary: it ends with its connection. The next follower makes
// another one, of the same name, and begins another epoch: changes between the two slots are lost.
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
// # A change is published: at most 10 files
//
// On the node that holds the slot:
//
//	origin/follower/term.go origin/follower/follower.go origin/follower/upstream.go
//	origin/follower/decode.go origin/follower/relation.go internal/list/row.go internal/list/value.go
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
	"listedge/internal/remedy"
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
	Slot        string               // persistent or temporary; any other: by max_slot_wal_keep_size
	Silence     func() time.Duration // the time since this node last read a heartbeat
	Logger      *slog.Logger
	Random      func() string // ends the name of an epoch; nil = crypto/rand
}

// Follower follows while it holds the slot, and waits for it otherwise.
type Follower struct {
	options Options
	period  time.Duration // of heartbeats

	mu        sync.Mutex
	stats     Stats     // except HeartbeatAge; guarded by mu
	heartbeat time.Time // when this node last published one; guarded by mu
	incapable error     // ErrIncapable, with the reason; guarded by mu
	slot      Slot      // as last polled; guarded by mu
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
	p.follow(f.options.Lists)
	f.options.Followed.SetServer(p.server)
	for fresh := false; ; {
		if err := f.options.Followed.OldTimeline(); err != nil {
			return err // the next connection may meet the new primary
		}
		s, err := p.Slot(ctx)
		if err != nil {
			return err
		}
		temporary := f.observe(s)
		switch {
		case s.lost:
			f.options.Logger.Warn("the slot exceeded max_slot_wal_keep_size: making a new one", "slot", p.slotName)
			err = p.dropSlot(ctx)
		case !s.held && (temporary || !s.exists):
			fresh, err = f.makeSlot(ctx, p, s, temporary)
			if fresh && temporary {
				return f.Follow(ctx, p, true, true)
			}
		case !s.held:
			return f.Follow(ctx, p, false, fresh)
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

// errSlotKind ends a term: the slot that is needed is of the other kind.
var errSlotKind = errors.New("max_slot_wal_keep_size was changed, so another kind of slot is needed")

// isTemporary says whether the slot is temporary, by the setting of the node: where nothing bounds the WAL that a
// persistent slot keeps while no node runs, it would fill the disk of the primary.
func isTemporary(setting string, unlimited bool) bool {
	return setting == "temporary" || setting != "persistent" && unlimited
}

// makeSlot makes the slot, unless this node has no log, which leaves it to others. Before a temporary slot it drops the
// persistent one that is left, unless a node takes that meanwhile: then that node follows.
func (f *Follower) makeSlot(ctx context.Context, p *primary, found Slot, temporary bool) (made bool, err error) {
	if _, err := call(ctx, f.options.Log.Epoch); err != nil {
		return false, err
	}
	err = p.checkPrerequisites(ctx, f.options.Lists)
	if found.exists && (err == nil || errors.Is(err, errIncomplete)) {
		f.options.Logger.Info("dropping a persistent slot, because the one that is needed is temporary", "slot", p.slotName)
		err = errors.Join(err, p.dropSlot(ctx))
	}
	if err != nil {
		return false, err
	}
	f.update(func() { f.slot.making = true })
	slow := time.AfterFunc(createSlow, func() { f.options.Logger.Warn(slowSlot) })
	defer slow.Stop()
	return p.createSlot(ctx, temporary, createByNodeTimeout)
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

// Follow takes the slot, or has made a temporary one, and begins a term. A slot that may not send all changes
// is dropped: a new one begins a new epoch. fresh says that the slot was just made.
func (f *Follower) Follow(ctx context.Context, p Upstream, temporary, fresh bool) error {
	v, err := p.View(ctx, "") // before the check, so that later changes of the catalog are noticed
	if err != nil {
		return err
	}
	run, err := p.Check(ctx)
	if errors.Is(err, errIncomplete) {
		return errors.Join(err, p.Drop(ctx))
	} else if err != nil {
		return err
	}
	t := term{Follower: f, primary: p, temporary: temporary, run: run}
	t.setCatalog(v)
	t.nameRows(run)
	present, err := call(ctx, f.options.Log.Epoch) // a node without the log leaves the slot to others
	if err != nil {
		return err
	}
	t.server, err = p.Replicate(ctx)
	if err != nil {
		return err
	}
	f.options.Followed.SetServer(t.server)
	err = t.begin(ctx, present, fresh)
	if err == nil {
		f.update(func() {
			f.stats.Terms++
			f.stats.Following, f.heartbeat, f.incapable, f.slot.making = true, time.Now(), nil, false
		})
		f.options.Logger.Info("following changes", "epoch", t.epoch, "term", t.last.Term, "slot", kindOf(temporary))
		err = t.loop(ctx)
	}
	if postgres.Code(err) == undefinedObject {
		// A change was written while the publication was missing. In the WAL that
		// the slot has to decode it is missing for ever.
		_, defect := p.Check(ctx)
		if defect != nil {
			err = defect
		}
	} else if !errors.Is(err, errPublicationChanged) && !errors.Is(err, errIncomplete) {
		return err
	}
	f.options.Logger.Warn("some changes may not have been published: making a new slot", "error", err)
	return errors.Join(err, p.Drop(ctx))
}

// kindOf names the kind of a slot.
func kindOf(temporary bool) string {
	if temporary {
		return "temporary"
	}
	return "persistent"
}

const (
	slowSlot = "the new slot waits for the end of write transactions that have been open for long"
	setLimit = "set max_slot_wal_keep_size to what the disk can spare, and reload"
)

// SlotRisk returns what the slot costs or may harm because nothing bounds the WAL that slots keep, and what to do;
// nil = nothing, as far as is known, or as --slot asks for.
func (f *Follower) SlotRisk() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch temporary := isTemporary(f.options.Slot, f.slot.unlimited); {
	case !f.slot.unlimited || f.options.Slot == "temporary":
		return nil
	case temporary:
		return remedy.Add(errors.New("the slot is temporary, because nothing bounds the WAL that a persistent one would keep: "+
			"whenever another node begins to follow, all nodes read their pages and keys again"),
			setLimit+": then the slot is persistent, and nothing is read again")
	}
	return remedy.Add(errors.New("while no node follows, the persistent slot may fill the disk of the primary"),
		setLimit+", or leave out --slot persistent")
}

// Making returns that a slot is being made, which may take long; empty = none is, as far as is known.
func (f *Follower) Making() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.slot.making {
		return slowSlot
	}
	return ""
}

// observe records what a poll of the slot found, and says whether the slot is to be temporary.
func (f *Follower) observe(s Slot) (temporary bool) {
	f.update(func() { f.slot, f.stats.Retained = s, s.retained })
	return isTemporary(f.options.Slot, s.unlimited)
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
