package follower

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"listedge/internal/changefeed"
)

// logPatience is how long the log may fail before the term is given up.
const logPatience = time.Second

const (
	// batchEntries and batchWait bound what is published at once, while more
	// arrives than is published: a commit waits for others that are here
	// already, and no longer.
	batchEntries = 500
	batchWait    = time.Millisecond
)

// queue puts the entry behind those that wait to be published.
func (t *term) queue(e changefeed.Entry) {
	if len(t.waiting) == 0 {
		t.waitingSince = time.Now()
	}
	e.Position = changefeed.Position{Term: t.last.Term, N: t.last.N + uint64(len(t.waiting)) + 1}
	t.waiting = append(t.waiting, e)
}

// due says whether to publish before more is received.
func (t *term) due(now time.Time) bool {
	return len(t.waiting) > 0 && (t.sender.Frontend().ReadBufferLen() == 0 ||
		len(t.waiting) >= batchEntries || now.Sub(t.waitingSince) > batchWait)
}

// publish appends what waits, in order. An error leaves open how many of the
// entries are there: the log's last position tells. What was appended by a second
// attempt counts for no heartbeat's After: the first may have brought it to a
// server that another has replaced since, where nodes read it earlier or later.
func (t *term) publish(ctx context.Context) error {
	attempts := 0
	for deadline := time.Now().Add(logPatience); len(t.waiting) > 0; {
		err := t.append(ctx, t.waiting)
		attempts++
		if err == nil {
			if t.shift(len(t.waiting)); attempts == 1 {
				t.acknowledged = t.last
			}
			return nil
		}
		if errors.Is(err, changefeed.ErrSuperseded) {
			return fmt.Errorf("publish: %w", err)
		}
		last, lastErr := t.logLast(ctx)
		switch {
		case lastErr != nil:
			err = errors.Join(err, lastErr)
		case last.Compare(t.waiting[len(t.waiting)-1].Position) > 0:
			return fmt.Errorf("publish: %w", changefeed.ErrFenced)
		case last.Compare(t.last) > 0: // of this term, then: so many are there
			t.shift(int(last.N - t.last.N))
			continue
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("publish: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(askEvery):
		}
	}
	return nil
}

// shift drops the first n of those that wait: they are published.
func (t *term) shift(n int) {
	for _, e := range t.waiting[:n] {
		if e.Change != nil {
			t.commits.Add(1)
		}
	}
	t.last.N += uint64(n)
	t.waiting = slices.Delete(t.waiting, 0, n)
}

func (t *term) append(ctx context.Context, entries []changefeed.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.options.Log.Append(ctx, t.epoch, entries...)
}

func (t *term) logLast(ctx context.Context) (changefeed.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.options.Log.Last(ctx, t.epoch)
}

// retention knows when entries were published, to let the log forget them.
type retention struct{ marks []published }

type published struct {
	at time.Time
	n  changefeed.Position
}

const (
	// logEntries bounds the log where much is written: nodes that are further
	// behind begin anew.
	logEntries = 200_000
	trimEvery  = 10 * time.Second
)

func (r *retention) add(at time.Time, n changefeed.Position) {
	r.marks = append(r.marks, published{at, n})
}

// trim returns the position before which all is older than kept, or more than
// logEntries ago; every trimEvery.
func (r *retention) trim(now time.Time, kept time.Duration, last changefeed.Position) (before changefeed.Position, ok bool) {
	if len(r.marks) > 0 && now.Sub(r.marks[len(r.marks)-1].at) < trimEvery {
		return before, false
	}
	r.add(now, last)
	old := slices.IndexFunc(r.marks, func(p published) bool { return now.Sub(p.at) <= kept })
	if old > 0 { // the newest of those that are older
		before, ok = r.marks[old-1].n, true
		r.marks = slices.Delete(r.marks, 0, old-1)
	}
	if last.N > logEntries {
		if most := (changefeed.Position{Term: last.Term, N: last.N - logEntries}); most.Compare(before) > 0 {
			before, ok = most, true
		}
	}
	return before, ok
}
