package apikey_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/internal/boottime"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/origin/apikey"
)

// followedDatabase is a table of keys whose commits a follower publishes, in
// virtual time. A commit is published before or after it becomes visible, and
// every message can be late or lost.
type followedDatabase struct {
	log    *changefeed.Local
	random *rand.Rand

	mu        sync.Mutex // guards all below
	rows      map[apikey.Hash]apikey.Key
	changedAt map[apikey.Hash]time.Time // became visible
	xid       uint64
	open      map[uint64]bool // not visible yet
	unsettled []changefeed.Change
	queue     []changefeed.Entry // to be published
	position  changefeed.Position
	dead      time.Time // until then there is no follower
	lookups   int
}

func (d *followedDatabase) lookup(_ context.Context, hashes []apikey.Hash, _ string) (map[apikey.Hash]apikey.Key, error) {
	boottimetest.Pass(d.pause(2 * time.Millisecond)) // from the query to its snapshot,
	d.mu.Lock()
	d.lookups += len(hashes)
	found := map[apikey.Hash]apikey.Key{}
	for _, hash := range hashes {
		if key, ok := d.rows[hash]; ok {
			found[hash] = key
		}
	}
	d.mu.Unlock()
	boottimetest.Pass(d.pause(80 * time.Millisecond)) // and to its answer: short enough for two queries in a row
	return found, nil
}

func (d *followedDatabase) pause(most time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.random.IntN(4) > 0 {
		most /= 50
	}
	return time.Duration(d.random.Int64N(int64(most)))
}

// commit changes a key: published now, visible after a while.
func (d *followedDatabase) commit(n int, hangs time.Duration) {
	d.mu.Lock()
	hash := hashNumber(n)
	d.xid++
	xid := d.xid
	d.open[xid] = true
	c := changefeed.Change{XID: xid, Touched: []changefeed.Touched{keyRow(d.rows[hash].ID)}}
	if n%3 == 0 {
		c.Touched[0] = keyRow(d.rows[hash].Workspace)
	}
	if n%7 == 0 {
		c.Touched[0] = changefeed.AllRowsOf(nil)
	}
	d.unsettled = append(d.unsettled, c)
	d.queue = append(d.queue, changefeed.Entry{Change: &c})
	d.mu.Unlock()
	boottimetest.Pass(hangs)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, xid)
	key := d.rows[hash]
	key.Limit.Version++
	d.rows[hash], d.changedAt[hash] = key, time.Now()
}

// publish is the follower: it appends commits in order, and heartbeats.
func (d *followedDatabase) publish(ctx context.Context) {
	for nextHeartbeat := time.Now(); ctx.Err() == nil; boottimetest.Pass(time.Millisecond) {
		d.mu.Lock()
		if d.random.IntN(3000) == 0 {
			d.dead = time.Now().Add(time.Duration(d.random.Int64N(int64(4 * time.Second))))
		}
		alive := time.Now().After(d.dead)
		d.mu.Unlock()
		if !alive {
			continue
		}
		if time.Now().After(nextHeartbeat) {
			nextHeartbeat = time.Now().Add(50 * time.Millisecond)
			d.mu.Lock()
			after := d.position // everything up to here is in the log
			s := changefeed.Snapshot{Xmin: d.xid + 1, Xmax: d.xid + 1, Running: slices.Sorted(maps.Keys(d.open))}
			if len(s.Running) > 0 {
				s.Xmin = s.Running[0]
			}
			d.unsettled = slices.DeleteFunc(slices.Clone(d.unsettled), func(c changefeed.Change) bool { return s.Sees(c.XID) })
			d.queue = append(d.queue, changefeed.Entry{Heartbeat: &changefeed.Heartbeat{Snapshot: s.String(), After: after, Unsettled: d.unsettled}})
			d.mu.Unlock()
			boottimetest.Pass(d.pause(100 * time.Millisecond)) // while Postgres decodes
		}
		d.mu.Lock()
		for i := range d.queue {
			d.position.N++
			d.queue[i].Position = d.position
			often := 500
			if d.queue[i].Change != nil {
				often = 8
			}
			if d.random.IntN(often) == 0 { // lost; the log is not the only one it may happen to
				continue
			}
			_ = d.log.Append(ctx, "e", d.queue[i])
		}
		d.queue = nil
		d.mu.Unlock()
	}
}

// Whichever messages are late or lost, no request uses a version of a key that was changed
// more than maxAge before.
func TestNoAnswerReliesOnAKeyThatWasChangedLongAgo(t *testing.T) {
	const keys = 40
	for seed := range 6 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &followedDatabase{log: changefeed.NewLocal(), random: rand.New(rand.NewPCG(uint64(seed), 7)), rows: map[apikey.Hash]apikey.Key{},
					changedAt: map[apikey.Hash]time.Time{}, open: map[uint64]bool{}, xid: 10, position: changefeed.Position{Term: 1}}
				for n := range keys {
					d.rows[hashNumber(n)] = apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Scopes: 1, StartedAt: unique.Make("")}
				}
				ring := apikey.NewCache(d.lookup, nil, func(apikey.Key, *int) {}, time.Minute, boottime.New())
				defer ring.Close()
				_ = d.log.SetEpoch(t.Context(), "", "e")
				reader := changefeed.NewSubscriber(d.log, &fleet.Followed{}, slog.New(slog.DiscardHandler), ring)
				ctx, stop := context.WithCancel(t.Context())
				var all sync.WaitGroup
				all.Go(func() { d.publish(ctx) })
				all.Go(func() { reader.Run(ctx) })
				for n := range keys { // dense or sparse
					pause := []time.Duration{3 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second}[n%3]
					text, hash := textNumber(n), hashNumber(n)
					all.Go(func() {
						for ; ctx.Err() == nil; boottimetest.Pass(d.pause(2 * pause)) {
							now := time.Now()
							e, err := ring.Authenticate(time.Now(), text, new(apikey.LastKey), func() bool { return false })
							if err != nil {
								continue
							}
							d.mu.Lock()
							row, changed := d.rows[hash], d.changedAt[hash]
							d.mu.Unlock()
							if e.Key != row && now.Sub(changed) > apikey.MaxAge {
								t.Errorf("key %d was changed %v before", n, now.Sub(changed))
							}
						}
					})
				}
				for range 60 {
					boottimetest.Pass(d.pause(time.Second))
					d.mu.Lock()
					n := d.random.IntN(keys)
					d.mu.Unlock()
					all.Go(func() { d.commit(n, d.pause(5*time.Second)) })
				}
				boottimetest.Pass(10 * time.Second)
				s := ring.Stats() // before the waiting requests are ended
				stop()
				all.Wait()
				if s.WithinGrace+s.Failures+s.Unknown > 0 {
					t.Errorf("the test means to be quick enough: %+v", s)
				}
			})
		})
	}
}
