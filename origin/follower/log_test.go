package follower_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"listedge/internal/changefeed"
)

// faultyLog is a log that a test makes fail.
type faultyLog struct {
	changefeed.Log
	append func(ctx context.Context, epoch string, entries []changefeed.Entry) error // called before Append; nil = not called
	naming func(from, to string)                                                     // called before SetEpoch; nil = not called
	away   atomic.Bool
	epochs atomic.Int64 // how often Epoch was called, once at each attempt to follow
}

var errAway = errors.New("the log is away")

func (l *faultyLog) ok() error {
	if l.away.Load() {
		return errAway
	}
	return nil
}

func (l *faultyLog) Append(ctx context.Context, epoch string, entries ...changefeed.Entry) error {
	if err := l.ok(); err != nil {
		return err
	}
	if l.append != nil {
		if err := l.append(ctx, epoch, entries); err != nil {
			return err
		}
	}
	return l.Log.Append(ctx, epoch, entries...)
}

func (l *faultyLog) SetEpoch(ctx context.Context, from, to string) error {
	if l.naming != nil {
		l.naming(from, to)
	}
	return l.Log.SetEpoch(ctx, from, to)
}

func (l *faultyLog) Epoch(ctx context.Context) (string, error) {
	l.epochs.Add(1)
	if err := l.ok(); err != nil {
		return "", err
	}
	return l.Log.Epoch(ctx)
}

func (l *faultyLog) Last(ctx context.Context, epoch string) (changefeed.Position, error) {
	if err := l.ok(); err != nil {
		return changefeed.Position{}, err
	}
	return l.Log.Last(ctx, epoch)
}

func TestAnAmbiguousAppendIsNotDuplicated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	doubtful := &faultyLog{Log: w.log}
	var n, most atomic.Int64
	doubtful.append = func(ctx context.Context, epoch string, entries []changefeed.Entry) error {
		most.Store(max(most.Load(), int64(len(entries))))
		happens := len(entries) // appended, although the caller gets an error
		switch n.Add(1) % 4 {
		case 0:
			return nil
		case 1:
			happens = 0
		case 2:
			happens /= 2
		}
		if err := w.log.Append(ctx, epoch, entries[:happens]...); err != nil {
			return err
		}
		return context.DeadlineExceeded
	}
	f := w.followWith(w.url, doubtful, silent)
	w.awaitFollowing(f)
	expect := func(from, to int) {
		t.Helper()
		for n := from; n < to; n++ {
			if c := w.change(); len(c.Lists) != 1 || c.Lists[0].Workspace != number(n) {
				t.Fatalf("change %d: %+v", n, c)
			}
		}
	}
	const few, all = 9, 300
	insert := func(n int) {
		w.exec("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')", number(n))
	}
	for n := range few {
		insert(n)
	}
	expect(0, few)
	f.stop()
	w.awaitFree()
	for n := few; n < all; n++ { // which come at once
		insert(n)
	}
	f = w.followWith(w.url, doubtful, silent)
	w.awaitFollowingFrom(f)
	again := int(w.change().Lists[0].Workspace[15]) // the first that was not confirmed yet
	if again > few {
		t.Fatalf("begins with %d", again)
	}
	expect(again+1, all)
	w.eventually("all are counted", func() bool { return f.Stats().Commits == uint64(all-again) }) // they are counted after they are appended
	if s := f.Stats(); s.Terms != 1 || most.Load() < 3 {
		t.Errorf("%+v, %d at once", s, most.Load())
	}
}

func TestALogThatIsAwayLosesNoChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	log := &faultyLog{Log: w.log}
	f := w.followWith(w.url, log, silent)
	w.awaitFollowing(f)
	w.heartbeat()
	epoch := w.epoch
	log.away.Store(true)
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	w.eventually("giving up", func() bool { return !f.Following() })
	w.awaitFree()
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($2, 'x')"))
	log.away.Store(false)
	w.awaitFollowingFrom(f)
	if w.epoch != epoch {
		t.Error("a new epoch, though nothing was missed")
	}
	if a, b := touched(w.change()), touched(w.change()); a != "items:1" || b != "items:2" {
		t.Errorf("%s, %s", a, b)
	}
}

// Where commits come fast, an append has all that came since the last one.
func TestFastCommitsAreAppendedTogether(t *testing.T) {
	const commits = 2000
	w := newWorld(t, server())
	first := w.follow()
	w.awaitFollowing(first)
	first.stop()
	w.exec("SET synchronous_commit = off")
	w.exec(fmt.Sprintf(`DO $$ BEGIN FOR n IN 1..%d LOOP
	INSERT INTO items (workspace_id, name) VALUES ('%s', 'x');
	COMMIT;
END LOOP; END $$`, commits, number(1)))
	published, appends := 0, 0 // of changes
	log := &faultyLog{Log: w.log}
	log.append = func(_ context.Context, _ string, entries []changefeed.Entry) error {
		before := published
		for _, e := range entries {
			if e.Change != nil {
				published++
			}
		}
		if published > before {
			appends++
		}
		return nil
	}
	f := w.followWith(w.url, log, silent)
	w.eventually("all are published", func() bool { return f.Stats().Commits >= commits })
	f.stop()
	if published != commits || appends > commits/4 {
		t.Errorf("%d changes in %d appends, want %d in far fewer", published, appends, commits)
	}
}

// The log is trimmed while this follower, or the next one, still needs its entries.
func TestATrimmedLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	trim := func() changefeed.Position {
		last := must2(w.log.Last(w.ctx(), w.epoch))
		must(w.log.Trim(w.ctx(), w.epoch, changefeed.Position{Term: last.Term, N: last.N + 1}))
		return last
	}
	f := w.follow()
	w.awaitFollowing(f)
	behind := w.at
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	w.change()
	forgotten := trim()
	w.at = forgotten // a node that has read everything goes on
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($2, 'x')"))
	if is := touched(w.change()); is != "items:2" {
		t.Error(is)
	}
	w.heartbeat()
	for _, e := range must2(readLog(w.ctx(), w.log, w.epoch, behind, time.Millisecond))[:1] { // another node sees a gap
		if e.Position.Compare(forgotten) <= 0 || e.Position.N == behind.N+1 {
			t.Errorf("%s is found after %s", e.Position, behind)
		}
	}
	if s := f.Stats(); s.Terms != 1 {
		t.Errorf("%+v", s)
	}
	f.stop()
	w.awaitFree()
	epoch := w.epoch
	f = w.follow()
	w.awaitFollowingFrom(f)
	if w.heartbeat(); w.epoch != epoch {
		t.Error("a new epoch, though the end of the log is there")
	}
	f.stop()
	w.awaitFree()
	trim() // now the follower cannot compare its last entry with the log
	f = w.follow()
	w.awaitFollowing(f)
	if w.heartbeat(); w.epoch == epoch {
		t.Error("the epoch goes on although nothing of its log is left")
	}
}
