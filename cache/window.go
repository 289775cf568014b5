package cache

import (
	"container/list"
	"sync"
	"time"
)

// window is a FIFO queue of entries that ristretto rejects or evicts, in a budget.
// Ristretto keeps entries that are often requested, and rejects new entries when memory
// is full, because it cannot know how often they will be requested. The algorithm
// (W-TinyLFU) has a window for that; ristretto has none. Without it, an entry that was
// prefetched would be evicted before it is requested.
//
// Invariant: size is the sum of the elements' sizes, and not above budget.
type window struct {
	evicted func() // called for each entry that is dropped before it expires

	mu     sync.Mutex // guards the fields below
	budget int64      // bytes
	byKey  map[string]*list.Element
	order  list.List // of *windowed, the oldest first
	size   int64     // bytes
}

type windowed struct {
	slot *slot
	size int64 // bytes
	hits int
}

// windowShare is the window's part of the memory for entries.
const windowShare = 1. / 16

// offerAfter is how many hits an entry has in the window before it is offered to
// ristretto again.
const offerAfter = 2

func newWindow(budget int64, evicted func()) *window {
	return &window{budget: budget, evicted: evicted, byKey: map[string]*list.Element{}}
}

// add stores the slot, unless it is larger than the window.
func (w *window) add(s *slot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(w.byKey[string(s.key)])
	size := s.size()
	if size > w.budget {
		w.evicted()
		return
	}
	w.byKey[string(s.key)] = w.order.PushBack(&windowed{slot: s, size: size})
	w.size += size
	for now := time.Now(); w.size > w.budget; {
		oldest := w.order.Front()
		if !oldest.Value.(*windowed).slot.isExpired(now) {
			w.evicted()
		}
		w.remove(oldest)
	}
}

// get returns the key's slot, or nil. often says that memory has to offer it to
// ristretto now.
func (w *window) get(key []byte) (s *slot, often bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.byKey[string(key)]
	if e == nil {
		return nil, false
	}
	v := e.Value.(*windowed)
	if v.slot.isExpired(time.Now()) {
		w.remove(e)
		return nil, false
	}
	v.hits++
	return v.slot, v.hits == offerAfter
}

// find returns the key's element, or nil.
func (w *window) find(key []byte) *list.Element {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byKey[string(key)]
}

// drop removes that element, if it is still there.
func (w *window) drop(e *list.Element) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(e)
}

func (w *window) used() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size
}

// remove removes an element. Nil, or one that was removed before, is ignored.
func (w *window) remove(e *list.Element) {
	if e == nil {
		return
	}
	v := e.Value.(*windowed)
	if w.byKey[string(v.slot.key)] == e {
		w.order.Remove(e)
		delete(w.byKey, string(v.slot.key))
		w.size -= v.size
	}
}
