package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
)

// following is what a node knows of the database that it follows: up to which moment the
// replica has all changes, and which server that is known of.
//
// Invariant: every commit that was visible before trustedUntil − bound has been applied to
// the replica.
type following struct {
	bound time.Duration // how long a proof is trusted

	trustedUntil atomic.Int64 // the moment at which the last proof becomes too old
	proof        atomic.Int64 // the moment of the last proof

	mu    sync.RWMutex     // guards the fields below
	epoch string           // of the log
	last  changefeed.Proof // the last proof since the last reset; zero = none
}

// trusted reports whether the last proof is young enough: every change that was visible
// bound ago has been applied.
func (f *following) trusted(now time.Duration) bool { return int64(now) < f.trustedUntil.Load() } // mutation: served although untrusted

// shareFactor: an answer that was read less than bound/shareFactor ago may be shared.
const shareFactor = 4

// shareTime is how long the answer to one query may be shared by all requests: it omits
// nothing that is older.
func (f *following) shareTime() time.Duration { return f.bound / shareFactor }

// reset forgets the proof.
func (f *following) reset(epoch string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trustedUntil.Store(0)
	f.epoch, f.last = epoch, changefeed.Proof{}
}

// prove notes a proof. moment is the proof's, on the node's clock.
func (f *following) prove(p changefeed.Proof, moment time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = p
	f.proof.Store(max(f.proof.Load(), int64(moment)))
	f.trustedUntil.Store(f.proof.Load() + int64(f.bound)) // mutation: trusted for longer
}

// known returns the log's epoch and the last proof since the last reset.
func (f *following) known() (epoch string, last changefeed.Proof) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.epoch, f.last
}

// Cache implements changefeed.Listener, by which it learns of changes in the database. The
// methods must not be called once a call to Close has begun.
var _ changefeed.Listener = (*Cache)(nil)

// Reset implements changefeed.Listener: no row is current any more.
func (c *Cache) Reset(epoch string, _ changefeed.ResetCause) {
	c.followed.reset(epoch)
	c.replica.Reset() // mutation: rows outlive a reset
}

// Changed implements changefeed.Listener.
func (*Cache) Changed(changefeed.Position, *changefeed.Change) {}

// Beat implements changefeed.Listener: the replica moves to the heartbeat's snapshot.
func (c *Cache) Beat(b changefeed.Beat) {
	if c.replica.Apply(&b) {
		c.memory.dropOutdated()
	}
	_, last := c.followed.known()
	for _, change := range b.Settled {
		if change.CommittedAt != 0 && last.StartedAt != "" { // otherwise it may have been in the log for long
			c.options.CommitApplied(max(0, time.Since(time.UnixMicro(change.CommittedAt)))) // nothing else compares the two clocks
		}
	}
}

// ValidThrough implements changefeed.Listener.
func (c *Cache) ValidThrough(p changefeed.Proof) { c.followed.prove(p, c.clock.Of(p.Moment)) } // mutation: a read from before a sleep

// Mode is how the freshness of pages is judged.
type Mode uint8

// The modes.
const (
	ModeTTL       Mode = iota // by their age: changes cannot be followed
	ModeUntrusted             // by changes, but there is no proof that is young enough
	ModeFollowed              // by changes
)

func (m Mode) String() string { return [...]string{"ttl", "untrusted", "followed"}[m] }

// Mode returns the current mode.
func (c *Cache) Mode() Mode {
	switch {
	case !c.following.Load():
		return ModeTTL
	case c.followed.trusted(c.clock.Now()):
		return ModeFollowed
	}
	return ModeUntrusted
}

// SetTTLMode says whether pages are judged by their age, because changes cannot be
// followed. Without a freshness bound they always are. The memory is then for finished
// pages alone: the replica gives up its rows.
func (c *Cache) SetTTLMode(on bool) {
	c.following.Store(!on && c.options.Bound > 0)
	if on {
		c.replica.Reset()
	}
	c.memory.setShare(c.following.Load())
}

// PrimaryStart returns when the primary of the last proof was started, by its own clock;
// empty = no proof is young enough.
func (c *Cache) PrimaryStart() string {
	if c.Mode() != ModeFollowed {
		return ""
	}
	_, last := c.followed.known() // after the mode: it is never older than the proof that was young enough
	return last.StartedAt
}

// ProofAge returns the time since the moment of the last proof: all changes before it are
// applied.
func (c *Cache) ProofAge() time.Duration {
	return c.clock.Now() - time.Duration(c.followed.proof.Load())
}
