package cache

import (
	"time"

	"listedge/internal/changefeed"
)

// Cache implements changefeed.Listener, by which it learns of changes in the
// database. The methods must not be called before a call to Close has begun.
var _ changefeed.Listener = (*Cache)(nil)

// Reset implements changefeed.Listener: no entry is current any more.
func (c *Cache) Reset(epoch string, _ changefeed.ResetCause) { c.tracker.Reset(epoch) }

// Changed implements changefeed.Listener.
func (c *Cache) Changed(at changefeed.Position, change *changefeed.Change) {
	joined := c.tracker.Changed(at, change)
	if change.CommittedAt != 0 && joined { // otherwise it may have been in the log for long
		c.lag.Observe(max(0, time.Since(time.UnixMicro(change.CommittedAt)))) // nothing else compares the two clocks
	}
	c.refresher.changed(change)
}

// Settled implements changefeed.Listener.
func (c *Cache) Settled(change *changefeed.Change) { c.tracker.Settled(change, c.clock.Now()) }

// Beat implements changefeed.Listener.
func (*Cache) Beat(changefeed.Beat) {}

// ValidThrough implements changefeed.Listener.
func (c *Cache) ValidThrough(p changefeed.Proof) {
	c.tracker.ValidThrough(p, c.clock.Of(p.Moment), c.clock.Now())
}

// Mode is how the freshness of entries is judged.
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
	case c.tracker.Trusted(c.clock.Now()):
		return ModeFollowed
	}
	return ModeUntrusted
}

// SetTTLMode says whether entries are judged by their age, because changes cannot
// be followed. Without a freshness bound they always are. An entry that was stored
// in one mode is not fresh by the changes of the other.
func (c *Cache) SetTTLMode(on bool) { c.following.Store(!on && c.options.Bound > 0) }

// Primary returns the primary of the last proof. server is its system and timeline;
// empty = there was no proof yet. run is when it was started; empty = the last proof is
// too old.
func (c *Cache) Primary() (server, run string) {
	server, run = c.tracker.Primary(c.clock.Now())
	if !c.following.Load() {
		run = ""
	}
	return server, run
}
