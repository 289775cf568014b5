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
	"listedge/origin"
)

const (
	// identifyEvery is how often a node that follows no changes looks which
	// database its pages are of; identifySoon, while that fails.
	identifyEvery   = 5 * time.Second
	identifySoon    = watchEvery
	identifyTimeout = time.Second
	// startPause is between two looks at the fleet's timeline at the start, and
	// startPatience how long a node looks in vain.
	startPause    = 50 * time.Millisecond
	startPatience = 500 * time.Millisecond
	// neighboursEvery is how often the follower looks whether other fleets use its
	// Redis, and neighboursRarely, how often the other nodes do, of which there may
	// be hundreds.
	neighboursEvery  = 5 * time.Second
	neighboursRarely = time.Minute
)

// identifies says whether the node itself has to ask which database its pages are
// of, whose names in Redis have it: no follower does, or none can connect.
func (n *node) identifies() bool {
	return n.redis.pages != nil && (n.follower == nil || n.followed.Digest() == "" || n.follower.Incapable() != nil)
}

// findIdentity asks which database pages are of, where that is up to the node.
func (n *node) findIdentity(ctx context.Context) error {
	if !n.identifies() {
		n.unidentified.Store(nil)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	found, err := n.database.Identity(ctx)
	switch {
	case !n.identifies(): // the follower has found it meanwhile
		return nil
	case err == nil:
		n.followed.Found(changefeed.Identity{System: found.System, Database: found.Database, Region: n.region, Name: found.Name}, found.Timeline)
		n.unidentified.Store(nil)
	case !errors.Is(err, origin.ErrUnavailable):
		n.unidentified.Store(&err)
	}
	return err
}

// mayJudge decides whether a node that starts knows enough to judge answers of the
// database: it has looked which timeline the fleet follows, or has tried to since
// the database first answered, this long ago.
//
// Invariant: no page and no key is read from the database before that. So an
// answer of an old primary never counts as the primary's (postgres.Followed),
// unless the node may not ask which database it reads, or Redis has not
// answered for startPatience. A node serves without Redis; it then knows nothing
// of the fleet until Redis answers.
func mayJudge(looked bool, sinceAnswer time.Duration) bool {
	return looked || sinceAnswer >= startPatience
}

// findTimeline looks which timeline the fleet follows, until answers can be judged.
func (n *node) findTimeline(ctx context.Context) {
	var answered time.Time // when the database first did; one that does not gives no pages either
	for ctx.Err() == nil {
		err := n.findIdentity(ctx)
		if answered.IsZero() && !errors.Is(err, origin.ErrUnavailable) {
			answered = time.Now()
		}
		if looked := err == nil && n.seeEpoch(ctx); !answered.IsZero() && mayJudge(looked, time.Since(answered)) {
			close(n.timelineKnown)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(startPause):
		}
	}
}

// seeEpoch looks at the epoch of the identity that was found.
func (n *node) seeEpoch(ctx context.Context) (looked bool) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	epoch, err := n.changes.Epoch(ctx)
	if err == nil {
		n.followed.See(epoch)
	}
	return err == nil
}

// identify finds at the start what answers are judged by, and then keeps known
// which database pages are of while no follower does.
func (n *node) identify(ctx context.Context) {
	if n.changes != nil {
		n.findTimeline(ctx)
	}
	for ctx.Err() == nil {
		pause := identifyEvery
		if n.findIdentity(ctx) != nil || n.followed.OldTimeline() != nil { // the next answer may be of the new primary
			pause = identifySoon
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// checkTimeline is what /readyz says of the server that the node leads to.
func (n *node) checkTimeline(context.Context) error {
	select {
	case <-n.timelineKnown:
	default:
		return errors.New("it is not known yet which timeline the fleet follows")
	}
	if old := (*changefeed.TimelineError)(nil); errors.As(n.followed.OldTimeline(), &old) {
		return fmt.Errorf("%w: %s", old, old.Do())
	}
	return nil
}

// identityCondition is that the node may ask which database its pages are of.
func (n *node) identityCondition() condition {
	why := func() error {
		if err := n.unidentified.Load(); err != nil {
			return *err
		}
		return nil
	}
	return condition{
		holds: "the node may ask which database it reads", broken: "the node may not ask which database it reads: pages are not kept in Redis",
		ok: func() bool { return why() == nil }, why: why,
	}
}

// timelineCondition is that the server is the one that the fleet follows.
func (n *node) timelineCondition() condition {
	return condition{
		holds: "the database server is on the fleet's timeline", broken: "the database server is on an old timeline: what it answers is not served as fresh",
		ok: func() bool { return n.followed.OldTimeline() == nil }, why: func() error { return n.checkTimeline(context.Background()) },
	}
}

// neighboursPause is between two looks at which other fleets use the Redis.
func (n *node) neighboursPause() time.Duration {
	if n.follower != nil && n.follower.Stats().Following {
		return neighboursEvery
	}
	return neighboursRarely
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
