package cache

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheNextPageIsReadBehindTheAnswer(t *testing.T) {
	b, following := followed(t, Options{})
	for name, by := range map[string]struct {
		cache *Cache
		fill  Fill
	}{"followed": {following, b.brings("next")}, "by age": {open(t, Options{TTL: time.Hour}), brings("next")}} {
		var queries atomic.Int64
		fill := counted(&queries, by.fill)
		by.cache.PrefetchNext(keyOf("2"), listA, fill)
		eventually(t, name+": it is in memory", func() bool { return by.cache.memory.get(keyOf("2")) != nil })
		by.cache.refresher.prefetch(keyOf("2"), listA, fill) // what is there is not read again
		r, err := by.cache.Forward(keyOf("2"), listA, fails(errPanic))
		if err != nil || string(r.Entry.Body) != "next" || r.Source != Memory {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if s := by.cache.Stats(); s.NextPages != 1 || queries.Load() != 1 {
			t.Errorf("%s: %d pages by %d queries", name, s.NextPages, queries.Load())
		}
	}
}

// Whatever is asked for at once, the page after is asked for by one of them.
func TestAPageLeadsOnOnce(t *testing.T) {
	p, last := newEntryAt([]byte("x"), "next", time.Now()), newEntryAt([]byte("x"), "", time.Now())
	if !p.ClaimNextPrefetch() || p.ClaimNextPrefetch() || last.ClaimNextPrefetch() {
		t.Error("a page leads on more than once, or never, or the last one does")
	}
}

// A walker is served by the flight that was to read its page ahead, and one
// whose page is late asks the database no second time.
func TestAWalkerJoinsTheReadingAhead(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	var queries atomic.Int64
	began, release := make(chan struct{}), make(chan struct{})
	c.PrefetchNext(keyOf("2"), listA, counted(&queries, Fill{Primary: func(context.Context, string) (FillResult, error) {
		close(began)
		<-release
		return FillResult{Body: []byte("next")}, nil
	}}))
	<-began
	answer := make(chan Result)
	go func() {
		r, _ := c.Forward(keyOf("2"), listA, counted(&queries, brings("another")))
		answer <- r
	}()
	close(release)
	if r := <-answer; string(r.Entry.Body) != "next" || queries.Load() != 1 {
		t.Errorf("%q by %d queries", r.Entry.Body, queries.Load())
	}
}

// No worker is woken for a page that somebody reads already, or has read.
func TestWhatIsOnItsWayIsNotReadAhead(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	forward(t, c, keyOf("there"), brings("page"))
	began, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	for i := range refreshWorkers {
		c.PrefetchNext(keyOf(fmt.Sprint(i)), listA, Fill{Primary: func(context.Context, string) (FillResult, error) {
			began <- struct{}{}
			<-release
			return FillResult{}, nil
		}})
		<-began
	}
	c.PrefetchNext(keyOf("there"), listA, fails(errPanic))
	c.PrefetchNext(keyOf("0"), listA, fails(errPanic))
	if n := len(c.refresher.tasks); n != 0 { // all workers are busy
		t.Errorf("%d wait", n)
	}
	c.PrefetchNext(keyOf("another"), listA, fails(errPanic))
	if n := len(c.refresher.tasks); n != 1 {
		t.Errorf("%d wait, one is to", n)
	}
}

// Walks leave half of the queue to hot pages, and never wait.
func TestWalksAreDroppedUnderPressure(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	release := make(chan struct{})
	defer close(release)
	held := Fill{Primary: func(ctx context.Context, _ string) (FillResult, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return FillResult{}, ctx.Err()
	}}
	for i := range 4 * refreshQueue {
		c.PrefetchNext(keyOf(fmt.Sprint(i)), listA, held)
	}
	if n, dropped := len(c.refresher.tasks), c.Stats().NextPagesDropped; n > refreshQueue/2 || dropped < 3*refreshQueue {
		t.Errorf("%d wait, %d were dropped", n, dropped)
	}
}

// A page that cannot be read is nobody's loss until it is asked for.
func TestAFailedReadingAheadIsForgotten(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	c.PrefetchNext(keyOf("2"), listA, fails(errPanic))
	eventually(t, "it failed", func() bool { return c.Stats().FillErrors == 1 })
	r, err := c.Forward(keyOf("2"), listA, brings("page"))
	if err != nil || string(r.Entry.Body) != "page" || r.Err != nil {
		t.Errorf("%+v %v", r, err)
	}
}
