package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
)

// unproven is a cache that trusts a beater that says no more: its proof stays
// behind all that is read from now on.
func unproven(t *testing.T) (*beater, *Cache) {
	b := startBeater(t)
	c := open(t, Options{TTL: time.Minute, MaxStale: time.Minute, Follow: b.follow(patient)})
	eventually(t, "trusted", mode(c, ModeFollowed))
	b.quiet(true)
	return b, c
}

// A page of the primary that was read too early gives way to one that a
// standby has in full, though the proof of that one is older.
func TestAStandbysPageReplacesOneReadTooEarly(t *testing.T) {
	b, c := unproven(t)
	b.change(listA)
	eventually(t, "the change is known", func() bool {
		c.follow.mu.Lock()
		defer c.follow.mu.Unlock()
		return c.follow.pairs.of(listA).unsettled()
	})
	lags := true
	fill := Fill{
		Primary: func(context.Context, string) (Filled, error) {
			return Filled{Body: []byte("old"), Snapshot: "100:100:"}, nil
		},
		Standby: func(context.Context, string, uint64) (Filled, error) {
			if lags {
				return Filled{}, errors.New("behind")
			}
			return b.replays("new")
		},
	}
	read := func() string {
		t.Helper()
		if _, err := c.read(t.Context(), keyOf("q"), listA, nil, Origin, fill); err != nil {
			t.Fatal(err)
		}
		p := c.memory.get(keyOf("q")).page.Load()
		return fmt.Sprintf("%s, stands %t", p.Body, p.stands())
	}
	if got := read(); got != "old, stands false" {
		t.Fatal(got)
	}
	lags = false
	if got := read(); got != "new, stands true" {
		t.Error(got)
	}
}

// Requests that wait for one flight wait for the next at most, however old the
// proof of a standby's page is, and however often the list changes.
func TestNobodyWaitsForFlightAfterFlight(t *testing.T) {
	b, c := unproven(t)
	const requests = 30
	var asked, flights atomic.Int64
	all := make(chan struct{})
	putting := &c.memory.putting[xxhash.Sum64(keyOf("q"))%uint64(len(c.memory.putting))]
	fill := Fill{
		Primary: func(context.Context, string) (Filled, error) { return Filled{}, errors.New("not asked") },
		Standby: func(context.Context, string, uint64) (Filled, error) {
			flights.Add(1)
			<-all
			before := c.follow.verdicts[kept].Load()
			putting.Lock() // the page changes as soon as it is accepted, and before anybody is given it
			go func() {
				defer putting.Unlock()
				for c.follow.verdicts[kept].Load() == before {
					time.Sleep(time.Millisecond)
				}
				applied := c.Stats().Applied
				b.change(listA)
				for c.Stats().Applied == applied {
					time.Sleep(time.Millisecond)
				}
			}()
			return b.replays("page")
		},
	}
	var wg sync.WaitGroup
	for range requests {
		wg.Go(func() {
			if asked.Add(1) == requests {
				time.AfterFunc(50*time.Millisecond, func() { close(all) }) // about when all have joined
			}
			if r, err := c.Forward(keyOf("q"), listA, fill); err != nil || r.Err != nil {
				t.Error(err, r.Err)
			}
		})
	}
	wg.Wait()
	if n := flights.Load(); n > 4 {
		t.Errorf("%d flights for %d requests that came at once", n, requests)
	}
}

// A page that was read while changes could not be followed, and is kept when
// they can, is on no pair's list.
func TestAPageOfTheTimeBeforeIsNotReadAhead(t *testing.T) {
	b, c := unproven(t)
	c.CannotFollow(true)
	fill := b.brings("page")
	askFor(t, c, fill)
	c.memory.get(keyOf("q")).asked.Add(1 << 20)
	p := NewPage([]byte("another"), "", time.Now())
	c.CannotFollow(false) // between its being read and its being kept
	c.keep(keyOf("q"), listA, p, fill)
}
