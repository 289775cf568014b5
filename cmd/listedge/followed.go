package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"listedge/internal/changefeed"
)

const (
	// identifyEvery is how often a node that follows no changes looks which
	// database its pages are of.
	identifyEvery   = 5 * time.Second
	identifyTimeout = time.Second
	// neighboursEvery is how often a node looks whether other fleets use its Redis.
	neighboursEvery = 5 * time.Second
)

// identifies says whether the node itself has to look which database its pages are
// of, whose names in Redis have it: no follower does, or it cannot connect.
func (n *node) identifies() bool {
	return n.redis.pages != nil && (n.follower == nil || n.followed.Digest() == "")
}

// identify keeps known which database pages are of, while no follower does.
func (n *node) identify(ctx context.Context, region string) {
	pause := time.Duration(0)
	if n.follower != nil {
		pause = identifyEvery // it connects sooner, if it can
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if pause = identifyEvery; !n.identifies() {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, identifyTimeout)
		system, oid, name, err := n.database.Identity(asking)
		cancel()
		if err != nil {
			pause = watchEvery
			continue
		}
		n.followed.Found(changefeed.Identity{System: system, Database: oid, Region: region, Name: name}, 0)
		pause = identifyEvery
	}
}

// checkTimeline is what /readyz says of the server that the node leads to.
func (n *node) checkTimeline(context.Context) error {
	if old := (*changefeed.TimelineError)(nil); errors.As(n.followed.OldTimeline(), &old) {
		return fmt.Errorf("%w: %s", old, old.Do())
	}
	return nil
}

// timelineCondition is that the server is the one that the fleet follows.
func (n *node) timelineCondition() condition {
	return condition{
		holds: "the database server is on the fleet's timeline", broken: "the database server is on an old timeline: what it answers is not served as fresh",
		ok: func() bool { return n.followed.OldTimeline() == nil }, why: func() error { return n.checkTimeline(context.Background()) },
	}
}

// lookForNeighbours notes which other fleets use the Redis, and logs a change
// of it. It returns false while that cannot be known.
func (n *node) lookForNeighbours(ctx context.Context) (known bool) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	digest := n.followed.Digest()
	if digest == "" {
		return false
	}
	followers, err := n.changes.Followers(ctx)
	if err != nil {
		return false
	}
	text := neighbours(followers, digest)
	if last := n.neighbours.Swap(&text); last != nil && *last == text || last == nil && text == "" {
		return true
	}
	if text == "" {
		n.logger.Info("no other fleet uses this Redis any more")
	} else {
		n.logger.Warn(text, "do", neighboursDo)
	}
	return true
}

// neighbours says which of the followers are not of the identity; empty if none is.
func neighbours(followers map[string]string, digest string) string {
	delete(followers, digest)
	if len(followers) == 0 {
		return ""
	}
	return "another fleet uses this Redis, for " + strings.Join(slices.Sorted(maps.Values(followers)), " and ") +
		": limits of keys with equal ids, the count of nodes and memory are shared"
}

const neighboursDo = "give each fleet a Redis of its own"

// sharedRedis is what /readyz notes of it.
func (n *node) sharedRedis() string {
	if text := n.neighbours.Load(); text != nil {
		return *text
	}
	return ""
}
