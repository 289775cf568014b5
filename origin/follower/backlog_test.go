package follower

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"listedge/internal/changefeed"
)

// A huge transaction that is decoded at its commit delays heartbeats and nothing else:
// earlier commits are published before it is decoded, and candidates do not end the
// follower's connection. (Not parallel: other tests would wait for the server.)
func TestHeartbeatsWaitForAHugeTransaction(t *testing.T) {
	w := newWorld(t, server())
	var followed atomic.Pointer[Follower]
	// The longest that a heartbeat waited for its decoding, and how long before its
	// publication another was published. Both are known when the next entry is published.
	var waited, behind time.Duration
	var beat time.Time // when the last heartbeat was published
	var apart time.Duration
	log := &faultyLog{Log: w.log}
	var together []string // all changes in the first append that has a change
	log.append = func(_ context.Context, _ string, entries []changefeed.Entry) error {
		if together == nil {
			for _, e := range entries {
				if e.Change != nil {
					together = append(together, touched(*e.Change))
				}
			}
		}
		if f := followed.Load(); f != nil {
			if lag := f.Stats().LagTime; lag > waited && apart > 0 {
				waited, behind = lag, apart
			}
		}
		for _, e := range entries {
			if e.Heartbeat != nil {
				now := time.Now()
				if !beat.IsZero() {
					apart = now.Sub(beat)
				}
				beat = now
			}
		}
		return nil
	}
	f := w.followWith(withMemory(w.url, "2GB"), log, silent)
	followed.Store(f.Follower)
	w.awaitFollowing(f)
	w.followWith(w.url, w.log, always) // a candidate that would end a holder without signs of life
	w.heartbeat()
	const rows = 80_000
	huge := w.begin(fmt.Sprintf("INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, %d)", rows))
	w.exec("SET synchronous_commit = off") // so that the follower receives both transactions together
	w.exec(ids("INSERT INTO contacts (workspace_id, name) VALUES ($1, 'before')"))
	must2(huge.Exec(w.ctx(), "COMMIT"))
	w.exec(ids("INSERT INTO contacts (workspace_id, name) VALUES ($2, 'after')"))
	var published []string
	w.await("a heartbeat after all three changes", func(e changefeed.Entry) bool {
		switch {
		case e.Heartbeat != nil:
			return len(published) == 3 && len(e.Heartbeat.Unsettled) == 0
		case e.Change != nil:
			published = append(published, touched(*e.Change))
		}
		return false
	})
	w.heartbeat()
	if s := f.Stats(); s.Terms != 1 || !s.Following {
		t.Errorf("%+v", s)
	}
	f.stop()
	if want := "[contacts:1 whole:items contacts:2]"; fmt.Sprint(published) != want {
		t.Errorf("published %v, want %s", published, want)
	}
	if len(together) != 1 {
		t.Errorf("the first change was published together with later ones, so it waited for them: %v", together)
	}
	t.Logf("%d rows; a heartbeat waited %s, %s behind the one before", rows, waited, behind)
	if waited == 0 || waited > behind { // the next one is prepared when the last one is published
		t.Errorf("a heartbeat waited %s, and was published %s behind the one before", waited, behind)
	}
}
