package follower

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"listedge/stream"
)

// logPatience is how long the log may fail before the term is given up.
const logPatience = time.Second

// publish appends the entry as the next of the term. An error leaves open
// whether the entry is there: the log's last position tells.
func (t *term) publish(ctx context.Context, e stream.Entry) error {
	e.Position = stream.Position{Term: t.last.Term, N: t.last.N + 1}
	for deadline := time.Now().Add(logPatience); ; {
		err := t.append(ctx, e)
		if err != nil {
			last, lastErr := t.logLast(ctx)
			switch {
			case lastErr != nil:
				err = errors.Join(err, lastErr)
			case last == e.Position:
				err = nil
			case last.Compare(e.Position) > 0:
				return fmt.Errorf("publish: %w", stream.ErrFenced)
			}
		}
		if err == nil {
			t.last = e.Position
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("publish: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(askEvery):
		}
	}
}

func (t *term) append(ctx context.Context, e stream.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.options.Log.Append(ctx, t.epoch, e)
}

func (t *term) logLast(ctx context.Context) (stream.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.options.Log.Last(ctx, t.epoch)
}

// retention knows when entries were published, to let the log forget them.
type retention struct{ marks []published }

type published struct {
	at time.Time
	n  stream.Position
}

const (
	// logEntries bounds the log where much is written: nodes that are further
	// behind begin anew.
	logEntries = 200_000
	trimEvery  = 10 * time.Second
)

func (r *retention) add(at time.Time, n stream.Position) {
	r.marks = append(r.marks, published{at, n})
}

// trim returns the position before which all is older than kept, or more than
// logEntries ago; every trimEvery.
func (r *retention) trim(now time.Time, kept time.Duration, last stream.Position) (before stream.Position, ok bool) {
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
		if most := (stream.Position{Term: last.Term, N: last.N - logEntries}); most.Compare(before) > 0 {
			before, ok = most, true
		}
	}
	return before, ok
}
