package node

import (
	"context"
	"slices"
	"time"

	"listedge/internal/changefeed"
	"listedge/origin/follower"
)

const (
	// watchInterval is how often a node tries failed servers, and whether changes are followed.
	watchInterval = 200 * time.Millisecond
	// followAgain is how long the log of changes must be silent before a node that cannot
	// follow changes itself stops waiting for another node to do so.
	followAgain = 2 * time.Second
)

// followChanges makes the follower, which writes the log of changes while this node
// holds the slot, and the subscriber, which reads it for pages and keys.
func (n *Node) followChanges(f Flags, databaseURL string) {
	log := changefeed.Log(changefeed.NewLocal())
	if n.changes != nil {
		log = n.changes
	}
	n.feed = changefeed.NewSubscriber(log, n.followed, n.logger, n.Cache, n.server.Keys)
	n.follower = follower.New(follower.Options{DatabaseURL: databaseURL, Log: log, Followed: n.followed,
		LogKept: f.CacheTTL + f.MaxStale + time.Minute, Silence: n.feed.Silence, Logger: n.logger})
}

// incapable returns why changes cannot be followed; nil = they can, as far as is known. What a
// server lacks does not count if it is not the primary: it is as good as none.
func (n *Node) incapable() error {
	if n.database.WrongServer() != nil {
		return nil
	}
	return n.follower.Incapable()
}

// expireByAge makes pages expire by age while no node can follow changes.
func (n *Node) expireByAge(ctx context.Context) {
	byAge := false
	repeat(ctx, watchInterval, func(context.Context) {
		if now := n.incapable() != nil && n.feed.Silence() > followAgain; now != byAge {
			byAge = now
			n.Cache.SetTTLMode(now)
		}
	})
}

// repeat calls f again and again, with a pause after each call, until ctx ends.
func repeat(ctx context.Context, pause time.Duration, f func(context.Context)) {
	for ; ctx.Err() == nil; sleep(ctx, pause) {
		f(ctx)
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// leave lets the follower drop its slot if no other node of the fleet is in the roster, nor one
// that does not know its fleet yet. This node has removed itself, so the last of several that
// end at once sees nobody.
func (n *Node) leave() {
	if n.follower == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
	defer cancel()
	if n.redis.pages != nil {
		nodes, _, err := readRoster(ctx, n.redis.log, n.followed.Prefix(), rosterSilence)
		if err != nil || slices.ContainsFunc(nodes, func(e rosterEntry) bool { return e.Fleet == "" || e.Fleet == n.followed.Digest() }) {
			return
		}
	}
	n.follower.Leave(ctx)
}
