package follower

import (
	"context"
	"errors"
	"fmt"
	"time"

	"listedge/internal/changefeed"
)

const (
	// callTimeout bounds each call to the log and to the primary.
	callTimeout = time.Second
	// publishTimeout is how long the log may fail before the term ends.
	publishTimeout = time.Second
)

const (
	// appendPause is the least time between the snapshots of two heartbeats. A commit is
	// published at once if none came just before it. Where they come faster, each append
	// costs the nodes and Redis as much as several changes do.
	appendPause = 4 * time.Millisecond
	// batchBytes is how much of changes waits for the heartbeat that sees them.
	batchBytes = 1 << 20
	// retryFor is how long after a commit was decoded its visibility is looked for every
	// appendPause. Most are visible at the first look. One that waits for a standby is found
	// by a later heartbeat.
	retryFor = 20 * time.Millisecond
)

// enqueue appends the entry to those that wait to be published.
func (t *term) enqueue(e changefeed.Entry) {
	e.Position = changefeed.Position{Term: t.last.Term, N: t.last.N + uint64(len(t.waiting)) + 1}
	t.waiting = append(t.waiting, e)
	size := sizeOf(&e)
	t.waitingBytes += size
	t.bytes += size
}

// sizeOf returns what an entry takes in Redis, in bytes, or a little more.
func sizeOf(e *changefeed.Entry) (n int) {
	n = 350
	switch {
	case e.Heartbeat != nil:
		n += len(e.Heartbeat.Snapshot)
		for i := range e.Heartbeat.Unsettled {
			n += 60 + 30*len(e.Heartbeat.Unsettled[i].Lists)
		}
	case e.Change != nil:
		n += 30 * len(e.Change.Lists)
		for _, rows := range e.Change.Rows {
			for i := range rows {
				n += rowSize + rows[i].Size()
			}
		}
	}
	return n
}

// nextSnapshot returns when to take the next snapshot: at is when one is due at rest.
func (t *term) nextSnapshot(at time.Time) time.Time {
	wanted := len(t.waiting) > 0
	if n := len(t.unsettled); n > 0 {
		wanted = wanted || t.preparedAt.Sub(t.unsettled[n-1].decoded) < retryFor
	}
	if early := t.preparedAt.Add(appendPause); wanted && early.Before(at) {
		return early
	}
	return at
}

// publish appends the waiting entries to the log, in order and in one step. After an error it
// reads the log's last position to learn whether they were appended.
//
// Entries of a second attempt are not acknowledged: no heartbeat's After names them.
// The first attempt may have appended them to a Redis that was replaced since, and
// nodes may have read them there earlier.
func (t *term) publish(ctx context.Context) error {
	end := t.waiting[len(t.waiting)-1].Position
	for deadline, again := time.Now().Add(publishTimeout), false; ; again = true {
		err := bounded(ctx, func(ctx context.Context) error { return t.options.Log.Append(ctx, t.epoch, t.waiting...) })
		if errors.Is(err, changefeed.ErrSuperseded) {
			return fmt.Errorf("publish: %w", err)
		}
		last := end
		if err != nil {
			var unknown error
			if last, unknown = t.logEnd(ctx); unknown != nil {
				last, err = changefeed.Position{}, errors.Join(err, unknown)
			}
		}
		switch {
		case last.Compare(end) > 0:
			return fmt.Errorf("publish: %w", changefeed.ErrFenced)
		case last == end:
			if t.appended(); err == nil && !again { // mutation: a second attempt counts
				t.acknowledged = end
			}
			return nil
		case ctx.Err() != nil || time.Now().After(deadline):
			return fmt.Errorf("publish: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollPause):
		}
	}
}

// appended removes the waiting entries.
func (t *term) appended() {
	t.update(func() {
		for _, e := range t.waiting {
			if e.Change != nil {
				t.stats.Commits++
			}
		}
	})
	t.last = t.waiting[len(t.waiting)-1].Position
	clear(t.waiting) // frees the rows
	t.waiting, t.waitingBytes = t.waiting[:0], 0
}

func (t *term) logEnd(ctx context.Context) (changefeed.Position, error) {
	return call(ctx, func(ctx context.Context) (changefeed.Position, error) { return t.options.Log.Last(ctx, t.epoch) })
}

// call bounds a call to the log by callTimeout.
func call[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// bounded is call without a result.
func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}
