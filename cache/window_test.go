package cache

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// crowded is a memory full of pages that were asked for often.
func crowded(t *testing.T) *memory {
	t.Helper()
	m := openMemory(t, 8<<20)
	n := 0
	for m.evicted.Load() == 0 {
		m.put(keyOf(fmt.Sprint("old ", n)), NewPage(rows(18_000), "", time.Now()), time.Hour)
		n++
	}
	for range 20 {
		for i := range n {
			m.get(keyOf(fmt.Sprint("old ", i)))
		}
	}
	return m
}

// A page that was read ahead is there when its reader comes, though memory is
// full of pages that many ask for.
func TestANewPageIsKeptForItsReader(t *testing.T) {
	m := crowded(t)
	var turnedAway int
	for i := range 300 {
		key, p := keyOf(fmt.Sprint("new ", i)), NewPage(rows(18_000), "", time.Now())
		m.put(key, p, time.Hour)
		if _, kept := m.pages.Get(key); !kept {
			turnedAway++
		}
		for back := range min(i, 5) { // its reader is some pages behind
			if h := m.get(keyOf(fmt.Sprint("new ", i-back))); h == nil {
				t.Fatalf("page %d is gone %d puts later", i-back, back)
			}
		}
		if used := m.used(); used > 8<<20*budgetShare {
			t.Fatalf("%d bytes are used", used)
		}
	}
	if turnedAway < 50 {
		t.Errorf("ristretto turned away %d of 300: memory is not as crowded as the test needs", turnedAway)
	}
}

// Who is asked for in the window again and again moves out of it.
func TestAPageOfTheWindowThatIsAskedForMoves(t *testing.T) {
	m := crowded(t)
	key := keyOf("new")
	m.put(key, NewPage(rows(18_000), "", time.Now()), time.Hour)
	for range 10_000 { // ristretto hears of 512 at a time, and may miss some
		if m.get(key) == nil {
			t.Fatal("it is gone")
		}
		if m.window.at(key) == nil {
			return
		}
	}
	t.Error("it is still in the window")
}

func TestTheWindowHasBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 0
		w := newWindow(1000, func() { left++ })
		at := func(i int) *holder { return &holder{key: fmt.Sprint(i)} }
		for i := range 100 {
			w.keep(at(i), 100, time.Now().Add(time.Minute))
			if w.used() > 1000 {
				t.Fatalf("%d bytes of 1000", w.used())
			}
		}
		for i := range 100 {
			if h, _, _ := w.get([]byte(fmt.Sprint(i))); (h != nil) != (i >= 90) {
				t.Errorf("page %d: there %v", i, h != nil)
			}
		}
		if left != 90 {
			t.Errorf("%d are said to have left, want 90", left)
		}
		w.keep(at(99), 1001, time.Now().Add(time.Minute)) // grown beyond the window
		if h, _, _ := w.get([]byte("99")); h != nil || w.used() != 900 {
			t.Errorf("a page larger than the window is there; %d bytes", w.used())
		}
		before := w.at([]byte("98"))
		w.keep(at(98), 50, time.Now().Add(time.Minute))
		w.drop(before)
		if h, _, _ := w.get([]byte("98")); h == nil || w.used() != 850 {
			t.Errorf("an entry is dropped for the one before it; %d bytes", w.used())
		}
		time.Sleep(time.Minute)
		if h, _, _ := w.get([]byte("97")); h != nil {
			t.Error("a page outlived its time")
		}
		for i := range 9 {
			w.keep(at(i), 100, time.Now().Add(time.Minute))
		}
		if left != 90 {
			t.Errorf("%d left: those whose time had come are counted", left)
		}
	})
}
