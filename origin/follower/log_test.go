package follower_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/changefeed"
	"listedge/internal/list/listtest"
)

// faultyLog is a log that a test makes fail.
type faultyLog struct {
	changefeed.Log
	append func(ctx context.Context, epoch string, entries []changefeed.Entry) error // called before Append; nil = not called
	before func(call string)                                                         // called before each call, with its name; nil = not called
	away   atomic.Bool
	epochs atomic.Int64 // how often Epoch was called, once at each attempt to follow
}

var errAway = errors.New("the log is away")

func (l *faultyLog) ok(call string) error {
	if l.before != nil {
		l.before(call)
	}
	if l.away.Load() {
		return errAway
	}
	return nil
}

func (l *faultyLog) Append(ctx context.Context, epoch string, entries ...changefeed.Entry) error {
	if err := l.ok("Append"); err != nil {
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
	if err := l.ok("SetEpoch"); err != nil {
		return err
	}
	return l.Log.SetEpoch(ctx, from, to)
}

func (l *faultyLog) Epoch(ctx context.Context) (string, error) {
	l.epochs.Add(1)
	if err := l.ok("Epoch"); err != nil {
		return "", err
	}
	return l.Log.Epoch(ctx)
}

func (l *faultyLog) Last(ctx context.Context, epoch string) (changefeed.Position, error) {
	if err := l.ok("Last"); err != nil {
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
			c := w.change()
			if len(c.Touched) != 1 || c.Touched[0].Tenant != listtest.ID(n) {
				t.Fatalf("change %d: %+v", n, c)
			}
		}
	}
	const few, all = 9, 300
	insert := func(n int) {
		w.exec("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')", listtest.ID(n))
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
	var again int // the first that was not confirmed yet
	must2(fmt.Sscanf(touched(w.change()), "items:%d", &again))
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
	w.exec("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')")
	w.eventually("giving up", func() bool { return !f.Following() })
	w.awaitFree()
	w.exec("INSERT INTO items (workspace_id, name) VALUES ($2, 'x')")
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
END LOOP; END $$`, commits, listtest.ID(1)))
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

// writingLog writes a row, and waits until it is visible, before each append. So each row
// causes the next one, and changes are published at any time, also while a heartbeat waits
// to be sent.
type writingLog struct {
	changefeed.Log
	writer *pgx.Conn

	mu   sync.Mutex // guards rows
	rows []changefeed.Position
}

func (l *writingLog) Append(ctx context.Context, epoch string, entries ...changefeed.Entry) error {
	l.mu.Lock()
	l.rows = append(l.rows, entries[0].Position)
	row := len(l.rows)
	l.mu.Unlock()
	if _, err := l.writer.Exec(ctx, "INSERT INTO items (workspace_id, name) VALUES ($1, 'x')", listtest.ID(row)); err != nil {
		return err
	}
	return l.Log.Append(ctx, epoch, entries...)
}

// before returns how many rows were visible before the entry was appended.
func (l *writingLog) before(at changefeed.Position) (rows int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rows < len(l.rows) && l.rows[rows].Compare(at) <= 0 {
		rows++
	}
	return rows
}

// What a heartbeat proves: everything that was visible before the entry at After
// was in the log has been published before it, or is named by it. The follower
// notes that entry, and only then takes the snapshot; and it waits until it has
// decoded what is in the WAL, flushed or not.
func TestAHeartbeatProvesWhatWasVisible(t *testing.T) {
	t.Parallel()
	for name, commit := range map[string]string{"commits that are flushed": "on", "commits that are not flushed yet": "off"} {
		t.Run(name, func(t *testing.T) { // not beside the other: its flushes would be of all that the server has written
			w := newWorld(t, server())
			writer := open(t, w.url)
			must2(writer.Exec(w.ctx(), "SET synchronous_commit = "+commit))
			log := &writingLog{Log: w.log, writer: writer}
			f := w.followWith(w.url, log, silent)
			w.awaitFollowing(f)
			published := map[string]bool{}
			from, proven := -1, 0 // rows from before the test read the log are not known
			w.await("heartbeats", func(e changefeed.Entry) bool {
				if e.Change != nil {
					published[touched(*e.Change)] = true
				}
				if e.Heartbeat == nil {
					return false
				}
				if e.Heartbeat.After.Compare(e.Position) >= 0 || e.Heartbeat.After == (changefeed.Position{}) {
					t.Errorf("the heartbeat %s says that it came after %s", e.Position, e.Heartbeat.After)
				}
				rows := log.before(e.Heartbeat.After)
				if from < 0 {
					from = log.before(e.Position)
				}
				for row := from + 1; row <= rows; row++ {
					text := fmt.Sprintf("items:%d", row)
					if proven++; !published[text] {
						t.Errorf("row %d was visible before %s was in the log, and is not published before the heartbeat at %s", row, e.Heartbeat.After, e.Position)
					}
				}
				return proven >= 100 || t.Failed()
			})
			f.stop()
		})
	}
}

// An entry that was appended by a second attempt may have been in the log since the first. So
// no heartbeat names it as the entry that it came after.
func TestAHeartbeatDoesNotComeAfterADoubtfulEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	var doubtful atomic.Bool
	doubtful.Store(true)
	tried := map[changefeed.Position]bool{}
	log := &faultyLog{Log: w.log}
	log.append = func(ctx context.Context, epoch string, entries []changefeed.Entry) error {
		last := entries[len(entries)-1].Position
		if !doubtful.Load() || tried[last] {
			return nil
		}
		tried[last] = true
		return errAway
	}
	f := w.followWith(w.url, log, silent)
	w.awaitFollowing(f)
	for range 5 {
		if h := w.heartbeat(); h.After != (changefeed.Position{}) {
			t.Fatalf("a heartbeat after %s", h.After)
		}
	}
	doubtful.Store(false)
	w.await("a heartbeat after an entry of the term", func(e changefeed.Entry) bool { return e.Heartbeat != nil && e.Heartbeat.After.Term > 0 })
	f.stop()
}

// A replica applies a change when a heartbeat sees it, so both come together.
func TestAChangeComesWithTheHeartbeatThatSeesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	var together atomic.Bool
	log := &faultyLog{Log: w.log}
	log.append = func(_ context.Context, _ string, entries []changefeed.Entry) error {
		var changes []uint64
		for _, e := range entries {
			if e.Change != nil {
				changes = append(changes, e.Change.XID)
			}
			if e.Heartbeat != nil && len(changes) > 0 {
				snapshot, err := changefeed.ParseSnapshot(e.Heartbeat.Snapshot)
				together.Store(together.Load() || err == nil && snapshot.Sees(changes[0]))
			}
		}
		return nil
	}
	w.awaitFollowing(w.followWith(w.url, log, silent))
	w.eventually("an append has a change and the heartbeat that sees it", func() bool {
		w.exec("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')")
		return together.Load()
	})
}
