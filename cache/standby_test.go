package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"listedge/cache/freshness"
)

// unproven is a cache whose fakeFollower writes no more heartbeats: its proof stays older
// than every later fill.
func unproven(t *testing.T) (*fakeFollower, *Cache) {
	b := startFollower(t)
	c, _ := b.open(Options{TTL: time.Minute, MaxStale: time.Minute, Bound: patient})
	eventually(t, "trusted", mode(c, ModeFollowed))
	b.beSilent(true)
	return b, c
}

// An entry of the primary that was read before its change was visible is replaced by one of
// a standby that shows the change, although the standby's entry has an older proof.
func TestAStandbysEntryReplacesOneReadTooEarly(t *testing.T) {
	b, c := unproven(t)
	before := b.applied.Load()
	b.change(listA)
	eventually(t, "the change is known", func() bool { return b.applied.Load() > before })
	lags := true
	fill := Fill{
		Primary: func(context.Context, string) (FillResult, error) {
			return FillResult{Body: []byte("old"), Snapshot: "100:100:"}, nil
		},
		Standby: func(context.Context, Requirement) (FillResult, error) {
			if lags {
				return FillResult{}, errors.New("behind")
			}
			return b.replays("new")
		},
	}
	read := func() string {
		t.Helper()
		if _, err := (&lookup{Cache: c, key: keyOf("q"), list: listA, fill: fill}).fillAnew(); err != nil {
			t.Fatal(err)
		}
		p := c.memory.get(keyOf("q")).entry.Load()
		return fmt.Sprintf("%s, admitted %t", p.Body, p.Admitted())
	}
	if got := read(); got != "old, admitted false" {
		t.Fatal(got)
	}
	lags = false
	if got := read(); got != "new, admitted true" {
		t.Error(got)
	}
}

// A request waits for two flights at most, however old the proof of a standby's page is, and
// however often the list changes.
func TestARequestWaitsForTwoFlightsAtMost(t *testing.T) {
	b, c := unproven(t)
	const requests = 30
	var flights atomic.Int64
	all, brought := make(chan struct{}), make(chan uint64)
	putting := c.memory.putMutex(keyOf("q"))
	fill := Fill{
		Primary: func(context.Context, string) (FillResult, error) {
			return FillResult{}, errors.New("the primary must not be queried")
		},
		Standby: func(context.Context, Requirement) (FillResult, error) {
			flights.Add(1)
			<-all
			putting.Lock() // no request gets the page until the list has changed
			brought <- c.admissions[freshness.Admitted].Load()
			return b.replays("page")
		},
	}
	changes := func(before uint64) {
		defer putting.Unlock()
		eventually(t, "the page is accepted", func() bool { return c.admissions[freshness.Admitted].Load() > before })
		known := b.applied.Load()
		b.change(listA)
		eventually(t, "its change is applied", func() bool { return b.applied.Load() > known })
	}
	var wg sync.WaitGroup
	for range requests {
		wg.Go(func() {
			if r, err := c.Forward(keyOf("q"), listA, fill); err != nil || r.Err != nil {
				t.Error(err, r.Err)
			}
		})
	}
	answered := make(chan struct{})
	go func() { wg.Wait(); close(answered) }()
	eventually(t, "all wait for one flight", func() bool {
		stacks := make([]byte, 1<<20)
		return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("(*flight).wait(")) == requests
	})
	close(all)
	for waiting := true; waiting; {
		select {
		case before := <-brought:
			changes(before)
		case <-answered:
			waiting = false
		}
	}
	if n := flights.Load(); n > 4 {
		t.Errorf("%d flights for %d requests that came at once", n, requests)
	}
}
