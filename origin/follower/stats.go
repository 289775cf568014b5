package follower

import "time"

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
