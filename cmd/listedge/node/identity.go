package node

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"listedge/internal/page"
)

// Before a node answers, it finds out which database and which timeline its fleet
// follows. Names in Redis contain the identity of the database, so that two
// databases never share pages; and an old primary that is still running is
// recognised by its timeline.

const (
	// identifyInterval is how often a node that follows no changes queries the
	// identity of its database; identifyRetry, while that fails.
	identifyInterval = 5 * time.Second
	identifyRetry    = watchInterval
	identifyTimeout  = time.Second
	// startPause is the time between two reads of the fleet's timeline at the start,
	// and startTimeout is how long a starting node tries to read it.
	startPause   = 50 * time.Millisecond
	startTimeout = 500 * time.Millisecond
)

// lastError is the last failure of something that is tried again; nil = it did not fail.
type lastError struct{ atomic.Pointer[error] }

func (e *lastError) get() error {
	if err := e.Load(); err != nil {
		return *err
	}
	return nil
}

// identifies reports whether the node itself has to query the identity of its database,
// because no follower does or none can connect.
func (n *Node) identifies() bool {
	return n.redis.pages != nil && (n.follower == nil || n.followed.Digest() == "" || n.follower.Incapable() != nil)
}

// findIdentity queries the identity of the database, if no follower does.
func (n *Node) findIdentity(ctx context.Context) error {
	if !n.identifies() {
		n.identityFailure.Store(nil)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	found, err := n.database.Keys.Identify(ctx)
	switch {
	case !n.identifies(): // the follower has found it meanwhile
		return nil
	case err == nil:
		n.followed.SetServer(found)
		n.identityFailure.Store(nil)
	case !errors.Is(err, page.ErrUnavailable):
		n.identityFailure.Store(&err)
	}
	return err
}

// findTimeline decides when a starting node may judge answers of the database. It may once
// it has read the timeline that the fleet follows, or has tried to for startTimeout
// since the database first answered.
//
// Invariant: before that, no page and no key is read from the database. So an answer of
// an old primary is never taken for the primary's (fleet.Followed). There are two
// exceptions: the node has no right to query the identity, or Redis has not answered for
// startTimeout. A node also serves without Redis, but it knows the timeline of the fleet
// only when Redis answers.
func (n *Node) findTimeline(ctx context.Context) {
	var answered time.Time // when the database first answered; before, it returns no pages either
	for ctx.Err() == nil {
		err := n.findIdentity(ctx)
		if answered.IsZero() && !errors.Is(err, page.ErrUnavailable) {
			answered = time.Now()
		}
		if read := err == nil && n.readEpoch(ctx); !answered.IsZero() && (read || time.Since(answered) >= startTimeout) {
			close(n.timelineKnown)
			return
		}
		sleep(ctx, startPause)
	}
}

// readEpoch reads the epoch of the fleet's log from Redis: it has the timeline that the fleet
// follows. It reports whether Redis has answered.
func (n *Node) readEpoch(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	epoch, err := n.changes.Epoch(ctx)
	if err == nil {
		n.followed.ObserveEpoch(epoch)
	}
	return err == nil
}

// identify finds the database's identity and timeline, and repeats the former if no follower does.
func (n *Node) identify(ctx context.Context) {
	if n.changes != nil {
		n.findTimeline(ctx)
	}
	for ctx.Err() == nil {
		pause := identifyInterval
		if n.findIdentity(ctx) != nil || n.followed.OldTimeline() != nil { // the next answer may come from the new primary
			pause = identifyRetry
		}
		sleep(ctx, pause)
	}
}
