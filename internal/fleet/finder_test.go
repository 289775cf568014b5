package fleet_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/fleet"
)

// A starting node waits for its database as long as that is away, and for Redis half a second
// from then on.
func TestHowLongANodeWaitsForTheTimeline(t *testing.T) {
	shop := fleet.Server{Identity: fleet.Identity{System: "7400000000000000001", Database: 16384, Name: "shop"}, Timeline: 1}
	away, denied, lost := errors.New("away"), errors.New("permission denied"), errors.New("connection refused")
	const wait = 500 * time.Millisecond
	for name, c := range map[string]struct {
		until time.Duration // the database is away so long
		asked error         // of the database afterwards
		redis func(context.Context) error
		most  time.Duration // from then on
		old   bool          // the server is on an old timeline
	}{
		"Redis answers":          {0, nil, func(context.Context) error { return nil }, 0, true},
		"the database is away":   {time.Hour, nil, func(context.Context) error { return nil }, time.Second, true},
		"Redis is away":          {0, nil, func(context.Context) error { return lost }, wait, false},
		"Redis hangs":            {0, nil, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, wait, false},
		"it may not ask":         {0, denied, func(context.Context) error { t.Error("Redis is asked"); return nil }, wait, false},
		"neither, for some time": {time.Hour, nil, func(context.Context) error { return lost }, wait + time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				f := &fleet.Finder{Followed: &fleet.Followed{Known: make(chan struct{})}, Needed: func() bool { return true }, Away: away,
					Ask: func(context.Context) (fleet.Server, error) {
						if time.Since(began) < c.until {
							return fleet.Server{}, away
						}
						return shop, c.asked
					},
					Epoch: func(ctx context.Context) (string, error) {
						return fleet.EpochName{Identity: shop.Digest(), Timeline: 2}.String(), c.redis(ctx)
					}}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go f.Run(ctx)
				<-f.Followed.Known
				if took := time.Since(began) - c.until; took < 0 || took > c.most {
					t.Errorf("it waited %s", took)
				}
				if err := f.Failure(); !errors.Is(err, c.asked) || (f.Followed.OldTimeline() != nil) != c.old {
					t.Errorf("%v, %v", err, f.Followed.OldTimeline())
				}
			})
		})
	}
}

// While another asks the database, a node does not, and has no failure to show.
func TestWhoAsksTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var needed atomic.Bool
		var asked atomic.Int32
		denied := errors.New("permission denied")
		f := &fleet.Finder{Followed: &fleet.Followed{}, Needed: needed.Load, Away: errors.New("away"),
			Ask: func(context.Context) (fleet.Server, error) { asked.Add(1); return fleet.Server{}, denied }}
		needed.Store(true)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go f.Run(ctx)
		time.Sleep(time.Second)
		synctest.Wait()
		if !errors.Is(f.Failure(), denied) {
			t.Error(f.Failure())
		}
		needed.Store(false)
		before := asked.Load()
		time.Sleep(time.Minute)
		if times := asked.Load() - before; times > 0 || f.Failure() != nil {
			t.Errorf("asked %d times, %v", times, f.Failure())
		}
	})
}
