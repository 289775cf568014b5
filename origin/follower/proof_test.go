package follower_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/changefeed"
)

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
	if _, err := l.writer.Exec(ctx, "INSERT INTO items (workspace_id, name) VALUES ($1, 'x')", number(row)); err != nil {
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
		w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
		return together.Load()
	})
}
