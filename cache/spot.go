package cache

import (
	"bytes"
	"sync/atomic"
	"time"
	"unsafe"

	"listedge/prefetch"
)

// Spot is where the page that a client asked for last lies in memory. Most
// clients ask for the same page again and again; one that does is spared
// ristretto, which takes as long as all the rest of a hit's way through this
// package, and three times as long where there are many pages. The zero value
// is ready, for any number of goroutines.
//
// Invariants: a holder that a spot points to points back, and is in ristretto;
// as it leaves, it is cut off. So no spot keeps a page alive that has been given
// up, and none finds a page that a look-up would not.
type Spot struct{ holder atomic.Pointer[holder] }

// Ristretto keeps what is asked for often, and hears of one of so many hits of a
// page.
const (
	tellEvery = 8
	tellEarly = 64 // while there has always been room for all
)

// again is get for who may ask for the same once more.
func (m *memory) again(s *Spot, key []byte, now time.Time) *holder {
	if h := s.holder.Load(); h != nil && bytes.Equal(h.key, key) && h.lives(now) {
		if m.hears(h) {
			m.get(key)
		}
		return h
	}
	h := m.get(key)
	if h != nil && h.spot.Load() == nil && h.asked.Load()%tellEvery == 0 {
		m.remember(s, h)
	}
	return h
}

// hears says whether ristretto is to hear of a hit of the holder.
func (m *memory) hears(h *holder) bool {
	n := h.asked.Load()
	return n%tellEvery == 0 && (n%tellEarly == 0 || m.chose.Load())
}

// remember has the spot point to the holder, unless another one does.
func (m *memory) remember(s *Spot, h *holder) {
	if !h.spot.CompareAndSwap(nil, s) {
		return
	}
	if before := s.holder.Swap(h); before != nil {
		before.spot.CompareAndSwap(s, nil)
	}
	// If it left before it pointed to the spot, nobody cuts it off but we.
	if in := m.inRistretto(h.key); in != h || h.spot.Load() != s {
		s.holder.CompareAndSwap(h, nil)
		h.spot.CompareAndSwap(s, nil)
	}
}

// leave cuts the holder off from its spot: it is in ristretto no more, or was
// set once more.
func (h *holder) leave() {
	if h == nil {
		return // what ristretto deleted was not there
	}
	if s := h.spot.Swap(nil); s != nil {
		s.holder.CompareAndSwap(h, nil)
	}
}

// Prefetch has fetched what a hit reads of how the page is kept.
func (s *Spot) Prefetch() {
	h := s.holder.Load()
	prefetch.Memory(unsafe.Pointer(h), unsafe.Sizeof(*h))
}

// Clear has the spot forget its page: it is not used any more.
func (s *Spot) Clear() {
	if h := s.holder.Swap(nil); h != nil {
		h.spot.CompareAndSwap(s, nil)
	}
}
