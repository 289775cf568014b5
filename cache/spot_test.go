package cache

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// holds puts a page that lives for an hour.
func (m *memory) holds(key []byte, p *Entry) *holder { return m.put(key, p, time.Hour) }

func TestASpotFindsWhatALookUpWould(t *testing.T) {
	m, now := openMemory(t, 8<<20), time.Now()
	a, b := keyOf("a"), keyOf("b")
	m.holds(a, newEntryAt([]byte("a"), "", now))
	m.holds(b, newEntryAt([]byte("b"), "", now))
	var s Spot
	ask := func(key []byte, at time.Time) string {
		t.Helper()
		h := m.again(&s, key, at)
		if h == nil {
			return ""
		}
		return string(h.page.Load().Body)
	}
	for range 3 {
		if is := ask(a, now); is != "a" || s.holder.Load() == nil {
			t.Fatalf("%q, kept: %v", is, s.holder.Load())
		}
	}
	if is := ask(b, now); is != "b" {
		t.Errorf("another page: %q", is)
	}
	m.holds(b, newEntryAt([]byte("newer"), "", now.Add(time.Second)))
	for range 2 {
		if is := ask(b, now); is != "newer" {
			t.Errorf("after it was replaced: %q", is)
		}
	}
	s.Clear()
	if is := ask(b, now); is != "newer" {
		t.Errorf("after it was forgotten: %q", is)
	}
	held := s.holder.Load()
	if held == nil {
		t.Fatal("not kept")
	}
	held.until.Store(now.Add(time.Minute).UnixNano())
	m.pages.Del(b)
	if s.holder.Load() != nil || held.spot.Load() != nil {
		t.Error("kept beyond its stay")
	}
	if is := ask(b, now); is != "" {
		t.Errorf("what is not there: %q", is)
	}
}

// Virtual time: ristretto looks for pages whose time is over every few seconds,
// and finds none of them before.
func TestASpotGoesByThePagesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, key := openMemory(t, 8<<20), keyOf("q")
		const life = 500 * time.Millisecond
		m.put(key, newEntryAt([]byte("body"), "", time.Now()), life)
		var s Spot
		if m.again(&s, key, time.Now()) == nil || s.holder.Load() == nil {
			t.Fatal("not kept")
		}
		time.Sleep(life + life/slack + time.Millisecond)
		if s.holder.Load() == nil {
			t.Fatal("cut off before it was looked for")
		}
		if m.again(&s, key, time.Now()) != nil {
			t.Error("found after its time")
		}
	})
}

// Whatever pages come, go and are asked for: who is pointed to points back and
// is in memory, so that nothing is kept alive beyond the budget.
func TestNoSpotKeepsAPageThatIsGivenUp(t *testing.T) {
	const clients, pages, budget = 8, 400, 1 << 20 // a fifth of the pages
	m := openMemory(t, budget)
	spots := make([]Spot, 3*clients)
	var (
		all  sync.WaitGroup
		kept atomic.Int64
	)
	for c := range clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 7))
			for n := range 3000 {
				key, now := keyOf(fmt.Sprint(random.IntN(pages))), time.Now()
				s := &spots[random.IntN(len(spots))]
				for range random.IntN(3) + 1 {
					h := m.again(s, key, now)
					if h == nil {
						break
					}
					if string(h.key) != string(key) {
						t.Errorf("%q instead of %q", h.key, key)
					}
					h.asked.Add(1)
					if s.holder.Load() == h {
						kept.Add(1)
					}
				}
				switch {
				case n%3 == 0:
					m.holds(key, newEntryAt(rows(10_000), "", now))
				case n%50 == 1:
					m.pages.Del(key)
				case n%50 == 2:
					s.Clear()
				}
			}
		})
	}
	all.Wait()
	m.pages.Wait()
	for i := range spots {
		if h := spots[i].holder.Load(); h != nil && (h.spot.Load() != &spots[i] || m.inRistretto(h.key) != h) {
			t.Errorf("spot %d keeps a page that points to %p, and of which memory has %p", i, h.spot.Load(), m.inRistretto(h.key))
		}
	}
	if kept.Load() < 1000 {
		t.Errorf("only %d times did a spot point to the page", kept.Load())
	}
}

// While there is room for all pages, ristretto has nothing to choose between,
// and hears of few hits; from the first time it had, of more.
func TestRistrettoHearsMoreOnceItChoosesBetweenPages(t *testing.T) {
	m := openMemory(t, 1<<20)
	heard := func() int {
		key := keyOf("asked often")
		h, told := m.holds(key, newEntryAt(make([]byte, 1000), "", time.Now())), 0
		for n := range uint64(10 * tellEarly) {
			if h.asked.Store(n); m.hears(h) {
				told++
			}
		}
		return told
	}
	if told := heard(); told != 10 {
		t.Errorf("of %d hits it heard of %d, while there was room", 10*tellEarly, told)
	}
	for n := range 100 {
		m.holds(keyOf(fmt.Sprint(n)), newEntryAt(make([]byte, 30_000), "", time.Now()))
	}
	if told := heard(); told != 10*tellEarly/tellEvery {
		t.Errorf("of %d hits it heard of %d, when there was not", 10*tellEarly, told)
	}
}
