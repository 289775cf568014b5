package follower

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/changefeed"
)

// probingLog has a row written whenever the probes are read, and only then tells
// a nonce of that number: the row is visible when the nonce is chosen.
type probingLog struct {
	changefeed.Log
	t      *testing.T
	writer *pgx.Conn
	nonce  uint64
}

const prober = "a node"

func (l *probingLog) Probes(ctx context.Context) (map[string]uint64, error) {
	l.nonce++
	if _, err := l.writer.Exec(ctx, "INSERT INTO items (workspace_id, name) VALUES ($1, 'x')", number(int(l.nonce))); err != nil {
		return nil, err
	}
	return map[string]uint64{prober: l.nonce}, nil
}

// What a heartbeat proves: everything that was visible when it read a nonce has
// been published before it, or is named by it. The follower reads probes, and
// only then takes the snapshot; and it waits until it has decoded what is in the
// WAL, flushed or not.
func TestAHeartbeatProvesWhatWasVisible(t *testing.T) {
	t.Parallel()
	for name, commit := range map[string]string{"commits that are flushed": "on", "commits that are not flushed yet": "off"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			writer := open(t, w.url)
			if _, err := writer.Exec(w.ctx(), "SET synchronous_commit = "+commit); err != nil {
				t.Fatal(err)
			}
			f := w.followWith(w.url, &probingLog{Log: w.log, t: t, writer: writer}, uneasy)
			w.awaitFollowing(f)
			published := map[string]bool{}
			from, proven := uint64(0), 0 // rows of before the log was read here are not known
			w.await("heartbeats", func(e changefeed.Entry) bool {
				if e.Change != nil {
					published[touched(*e.Change)] = true
				}
				if e.Heartbeat == nil {
					return false
				}
				nonce := e.Heartbeat.Nonces[prober]
				row := fmt.Sprintf("items:%d", nonce)
				named := slices.ContainsFunc(e.Heartbeat.Unsettled, func(c changefeed.Change) bool { return touched(c) == row })
				if from == 0 {
					from = nonce
				} else if proven++; !published[row] && !named {
					t.Errorf("the heartbeat that echoes nonce %d comes before what was visible when it was chosen", nonce)
				}
				return proven == 20 || t.Failed()
			})
			f.stop()
		})
	}
}
