package main

import (
	"context"
	"time"
)

// condition is something that holds in normal running. What changes is logged
// once, however many requests notice.
type condition struct {
	holds, broken string // what to log
	ok            func() bool
}

const (
	watchEvery = 200 * time.Millisecond
	// followAgain is how long the log of changes must be silent before a node
	// that cannot follow changes itself stops waiting for one that can.
	followAgain = 2 * time.Second
)

// watch logs changes of condition, and lets pages live by their age while
// nobody can follow changes.
func (n *node) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	broken := make([]bool, len(n.conditions))
	cannot := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i, c := range n.conditions {
			switch ok := c.ok(); {
			case !ok && !broken[i]:
				n.logger.Warn(c.broken)
			case ok && broken[i]:
				n.logger.Info("again: " + c.holds)
			default:
				continue
			}
			broken[i] = !broken[i]
		}
		if n.follower == nil {
			continue
		}
		why := n.follower.Incapable()
		if now := why != nil && n.cache.Silence() > followAgain; now != cannot {
			cannot = now
			n.cache.CannotFollow(cannot)
			if cannot {
				n.logger.Warn("pages live --cache-ttl: changes cannot be followed", "why", why)
			} else {
				n.logger.Info("changes are followed again")
			}
		}
	}
}
