package follower

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// costs the nodes and Redis as much as several changes do. In the pause nothing is
	// received either: afterwards one wake-up receives all that has come.
	appendPause = 4 * time.Millisecond
	// holdChanges is how long changes wait for the heartbeat that sees them. They go out
	// without it if batchEntries or batchBytes wait.
	holdChanges  = 8 * time.Millisecond
	batchEntries = 500
	batchBytes   = 4 << 20
	// retryFor is how long after a commit was decoded its visibility is looked for every
	// appendPause. Most are visible at the first look. One that waits for a standby is found
	// by a later heartbeat.
	retryFor = 20 * time.Millisecond
	// drainWait is how long a message may take that has already come.
	drainWait = 200 * time.Microsecond
)

// enqueue appends the entry to those that wait to be published.
func (t *term) enqueue(e changefeed.Entry) {
	if len(t.waiting) == 0 {
		t.waitingSince, t.waitingBytes = time.Now(), 0
	}
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

// due says whether to publish without waiting for a heartbeat.
func (t *term) due(now time.Time) bool {
	// mutation: changes are appended one by one
	return len(t.waiting) >= batchEntries || t.waitingBytes >= batchBytes || len(t.waiting) > 0 && now.Sub(t.waitingSince) >= holdChanges
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

// publish appends the waiting entries to the log, in order. After an error it
// reads the log's last position to learn how many of them were appended.
//
// Entries of a second attempt are not acknowledged: no heartbeat's After names them.
// The first attempt may have appended them to a Redis that was replaced since, and
// nodes may have read them there earlier.
func (t *term) publish(ctx context.Context) error {
	attempts := 0
	for deadline := time.Now().Add(publishTimeout); len(t.waiting) > 0; {
		err := bounded(ctx, func(ctx context.Context) error { return t.options.Log.Append(ctx, t.epoch, t.waiting...) })
		attempts++
		t.appendedAt = time.Now()
		if err == nil {
			if t.appended(len(t.waiting)); attempts == 1 { // mutation: a second attempt counts
				t.acknowledged = t.last
			}
			return nil
		}
		if errors.Is(err, changefeed.ErrSuperseded) {
			return fmt.Errorf("publish: %w", err)
		}
		last, lastErr := t.logEnd(ctx)
		switch {
		case lastErr != nil:
			err = errors.Join(err, lastErr)
		case last.Compare(t.waiting[len(t.waiting)-1].Position) > 0:
			return fmt.Errorf("publish: %w", changefeed.ErrFenced)
		case last.Compare(t.last) > 0: // some of the waiting entries were appended
			t.appended(int(last.N - t.last.N))
			continue
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("publish: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollPause):
		}
	}
	return nil
}

// appended removes the first n of the waiting entries.
func (t *term) appended(n int) {
	t.update(func() {
		for _, e := range t.waiting[:n] {
			if e.Change != nil {
				t.stats.Commits++
			}
		}
	})
	t.last.N += uint64(n)
	t.waiting = slices.Delete(t.waiting, 0, n)
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

const (
	trimEvery = 10 * time.Second
	// logBytes bounds the log when many changes are written. It is trimmed when it has grown
	// by trimBytes. A node that is further behind resyncs.
	logBytes  = 64 << 20
	trimBytes = 8 << 20
)

// retention remembers when entries were published, oldest first, to trim the log.
type retention []publishedAt

// publishedAt says that the entry at the position was the last one at that time, and how
// many bytes the term had published.
type publishedAt struct {
	at       time.Time
	position changefeed.Position
	bytes    int
}

// trim returns a position before which entries can be removed from the log: they are
// older than kept, or more than logBytes from the end. ok is false if there are none, or if
// trim did its work less than trimEvery and trimBytes ago.
func (r *retention) trim(now publishedAt, kept time.Duration) (before changefeed.Position, ok bool) {
	times := *r
	if n := len(times); n > 0 && now.at.Sub(times[n-1].at) < trimEvery && now.bytes-times[n-1].bytes < trimBytes {
		return before, false
	}
	times = append(times, now)
	if young := slices.IndexFunc(times, func(p publishedAt) bool {
		return now.at.Sub(p.at) <= kept && now.bytes-p.bytes <= logBytes-2*trimBytes
	}); young > 0 {
		before, ok = times[young-1].position, true
		times = slices.Delete(times, 0, young-1)
	}
	*r = times
	return before, ok
}
