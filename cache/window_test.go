package cache

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
)

// crowded is a full memory whose entries had this many requests each.
func crowded(t *testing.T, often int) *memory {
	t.Helper()
	m := openMemory(t, 8<<20)
	n := 0
	for m.evicted.Load() == 0 {
		m.put(keyOf(fmt.Sprint("old ", n)), newEntryAt(rows(18_000), "", time.Now()), time.Hour)
		n++
	}
	for range often {
		for i := range n {
			m.get(keyOf(fmt.Sprint("old ", i)))
		}
	}
	return m
}

// A new entry is in memory when its first request comes, even if memory is full: of pages
// with many requests, so that ristretto rejects the entry, or of pages with few, so that
// ristretto may evict it.
func TestANewEntryStaysUntilItsFirstRequest(t *testing.T) {
	for _, often := range []int{20, 0} {
		m, rescued := crowded(t, often), 0
		for i := 0; rescued < 20; i++ {
			if i == 10_000 {
				t.Fatalf("%d of %d pages were in the window: memory is not as crowded as the test needs", rescued, i)
			}
			m.put(keyOf(fmt.Sprint("new ", i)), newEntryAt(rows(18_000), "", time.Now()), time.Hour)
			if i < 5 {
				continue
			}
			key := keyOf(fmt.Sprint("new ", i-5)) // its request comes some pages later
			if m.window.find(key) != nil {
				rescued++
			}
			if m.get(key) == nil {
				t.Fatalf("entries with %d requests each: page %d was evicted before its request", often, i-5)
			}
			if used := m.used(); used > 8<<20*budgetShare {
				t.Fatalf("%d bytes are used", used)
			}
		}
	}
}

// An entry of the window that is requested repeatedly moves to ristretto.
func TestAnEntryOfTheWindowThatIsRequestedMovesOut(t *testing.T) {
	m := crowded(t, 20)
	key := keyOf("new")
	m.put(key, newEntryAt(rows(18_000), "", time.Now()), time.Hour)
	for range 10_000 { // ristretto counts requests in batches of 512, and may drop some
		if m.get(key) == nil {
			t.Fatal("it is gone")
		}
		if m.window.find(key) == nil {
			return
		}
	}
	t.Error("it is still in the window")
}

func TestTheWindowIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 0
		w := newWindow(10_000, func() { left++ })
		sized := func(i int, size int64) *slot {
			h := &slot{key: fmt.Append(nil, i)}
			h.expiresAt.Store(time.Now().Add(time.Minute).UnixNano())
			p := &Entry{}
			p.deflated.Store(&[]byte{})
			h.entry.Store(p)
			p.Body = make([]byte, size-h.size())
			return h
		}
		for i := range 100 {
			w.add(sized(i, 1000))
			if w.used() > 10_000 {
				t.Fatalf("%d bytes of 10,000", w.used())
			}
		}
		for i := range 100 {
			if h, _ := w.get([]byte(fmt.Sprint(i))); (h != nil) != (i >= 90) {
				t.Errorf("page %d: there %v", i, h != nil)
			}
		}
		if left != 90 {
			t.Errorf("%d are said to have left, want 90", left)
		}
		w.add(sized(99, 11_000)) // larger than the window
		if h, _ := w.get([]byte("99")); h != nil || w.used() != 9000 || left != 91 {
			t.Errorf("a page larger than the window is there; %d bytes", w.used())
		}
		before := w.find([]byte("98"))
		w.add(sized(98, 600))
		w.drop(before)
		if h, _ := w.get([]byte("98")); h == nil || w.used() != 8600 {
			t.Errorf("an entry is dropped for the one before it; %d bytes", w.used())
		}
		boottimetest.Pass(time.Minute)
		if h, _ := w.get([]byte("97")); h != nil {
			t.Error("a page outlived its time")
		}
		for i := range 9 {
			w.add(sized(i, 1000))
		}
		if left != 91 {
			t.Errorf("%d left: those whose time had come are counted", left)
		}
	})
}

// An entry that was found in the window and has left it since is not offered to ristretto,
// because a newer entry may have been stored meanwhile.
func TestAnEntryThatLeftTheWindowIsNotOffered(t *testing.T) {
	m, key := openMemory(t, 1<<20), keyOf("q")
	keep := func(key []byte) *slot {
		h := &slot{key: key}
		h.entry.Store(newEntryAt(rows(1000), "", time.Now()))
		h.expiresAt.Store(time.Now().Add(time.Hour).UnixNano())
		m.window.add(h)
		return h
	}
	h := keep(key)
	for n := 0; m.window.find(key) != nil; n++ {
		keep(keyOf(fmt.Sprint(n)))
	}
	newer := newEntryAt(rows(1000), "", time.Now().Add(time.Second))
	m.put(key, newer, time.Hour)
	m.offer(key, h)
	if m.get(key).entry.Load() != newer {
		t.Error("the older page took the newer one's place")
	}
}
