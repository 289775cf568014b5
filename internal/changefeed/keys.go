package changefeed

import (
	"context"
	"slices"
	"sync"
	"time"
)

// KeyChanges follows, in a log that a node reads anyway, the changes of keys
// and workspaces, for those who keep keys in memory. It stands between the log
// and its one reader, and sees what is read and what is probed.
//
//	log ── Read ──► KeyChanges ──► the reader: pages
//	                    └── Changed, Proven, Unproven: keys
//
// A change is told twice: when it is published, which is soon, and when a
// heartbeat's snapshot has seen it, for who looked between the two may have
// seen the old row.
//
// Invariant: when Proven(since, until, run) is called, every change of keys that
// became visible after since and until until, on the server that was started at
// run, has been told once it was visible.
// (The heartbeat that proves until has a snapshot taken later, and settles what
// that sees before it proves. What was not visible at since is published
// behind the heartbeat that was read then, or named unsettled by it.)
type KeyChanges struct {
	Log

	mu        sync.Mutex // guards all below
	told      KeyListener
	node      string    // who probes
	probed    time.Time // when, the last time
	epoch     string
	read      bool // an entry of the epoch has been read
	position  Position
	since     time.Time // when the first proof was read; zero = nothing is proven
	run       string    // when the server was started that it was about
	sent      Probes
	unsettled []Change // of keys, published and not yet known to be visible
}

// KeyListener is told of changes of keys, by one caller at a time. It must not
// wait for anything: the log's reader waits for it.
type KeyListener interface {
	Changed(c Change)
	Proven(since, until time.Time, run string)
	Unproven() // changes may have been missed
}

// FollowKeys follows what is read of the log.
func FollowKeys(log Log) *KeyChanges {
	return &KeyChanges{Log: log, told: nobody{}}
}

// Tell has a listener told from now on, which knows no keys yet.
func (k *KeyChanges) Tell(l KeyListener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = l
}

type nobody struct{}

func (nobody) Changed(Change)                      {}
func (nobody) Proven(time.Time, time.Time, string) {}
func (nobody) Unproven()                           {}

// Probe implements Log.
func (k *KeyChanges) Probe(ctx context.Context, node string, nonce uint64) error {
	k.mu.Lock()
	k.node, k.probed = node, time.Now()
	k.sent.Sent(nonce, k.probed)
	k.mu.Unlock()
	return k.Log.Probe(ctx, node, nonce)
}

// Probed is when the node last probed.
func (k *KeyChanges) Probed() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.probed
}

// Read implements Log.
func (k *KeyChanges) Read(ctx context.Context, epoch string, after Position, wait time.Duration) ([]Entry, error) {
	entries, err := k.Log.Read(ctx, epoch, after, wait)
	k.mu.Lock()
	defer k.mu.Unlock()
	if epoch != k.epoch {
		k.beginAnew()
		k.epoch, k.read = epoch, false
	}
	for i := range entries {
		k.see(&entries[i])
	}
	return entries, err
}

func (k *KeyChanges) beginAnew() {
	if !k.since.IsZero() {
		k.told.Unproven()
	}
	k.since, k.unsettled = time.Time{}, nil
	k.sent.Forget()
}

func (k *KeyChanges) see(e *Entry) {
	if k.read && e.Position.Compare(k.position) <= 0 {
		return // the reader began anew before the end of what it had read
	}
	if e.Undecodable() || k.read && !e.Follows(k.position) {
		k.beginAnew()
	}
	k.read, k.position = true, e.Position
	switch {
	case e.Change != nil && e.Change.touchesKeys():
		k.unsettled = append(k.unsettled, *e.Change)
		k.told.Changed(*e.Change)
	case e.Heartbeat != nil:
		k.heartbeat(e.Heartbeat)
	}
}

func (k *KeyChanges) heartbeat(h *Heartbeat) {
	snapshot, err := ParseSnapshot(h.Snapshot)
	if err != nil {
		return // proves nothing
	}
	k.unsettled = slices.DeleteFunc(k.unsettled, func(c Change) bool {
		settled := snapshot.Sees(c.XID)
		if settled {
			k.told.Changed(c)
		}
		return settled
	})
	probed, ours := k.sent.Echoed(h.Nonces[k.node])
	if !ours {
		return
	}
	if !k.since.IsZero() && h.Run != k.run {
		k.beginAnew() // another server, or the same once more: what it was doing before is not known
	}
	if k.since.IsZero() {
		k.since, k.run = time.Now(), h.Run
		k.unsettled = slices.DeleteFunc(slices.Clone(h.Unsettled), func(c Change) bool { return !c.touchesKeys() })
	}
	k.told.Proven(k.since, probed, k.run)
}

func (c *Change) touchesKeys() bool {
	return c.Touches(Keys) || slices.ContainsFunc(c.Lists, func(p List) bool { return p.Collection == Keys })
}
