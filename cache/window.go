package cache

import (
	"container/list"
	"sync"
	"time"
)

// window keeps pages that ristretto turns away, for a while: first in, first
// out, in bytes of their own. Ristretto keeps what is asked for often, and of a
// new page nobody can know that; without a window, which the algorithm was
// described with, a page that was read ahead of its reader is gone when the
// reader comes, as soon as memory is full.
type window struct {
	most int64  // bytes
	left func() // told of each page that had to go before its time

	mu    sync.Mutex // guards all below
	pages map[string]*list.Element
	order list.List // of *windowed, the oldest first
	bytes int64
}

type windowed struct {
	holder *holder
	cost   int64 // bytes
	until  time.Time
	found  int // how often
}

// windowShare is which part of what pages may fill the window has.
const windowShare = 1. / 16

// foundOften is how often a page is found in the window before it is offered to
// ristretto once more.
const foundOften = 2

func newWindow(most int64, left func()) *window {
	return &window{most: most, left: left, pages: map[string]*list.Element{}}
}

// keep keeps a page until then, unless it is larger than the window.
func (w *window) keep(h *holder, cost int64, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(w.pages[h.key])
	if cost > w.most {
		return
	}
	w.pages[h.key] = w.order.PushBack(&windowed{holder: h, cost: cost, until: until})
	w.bytes += cost
	for w.bytes > w.most {
		if oldest := w.remove(w.order.Front()); time.Now().Before(oldest.until) {
			w.left()
		}
	}
}

// get returns the key's holder, or nil, and whether this was the time to offer
// it to ristretto, and until when.
func (w *window) get(key []byte) (h *holder, often bool, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.pages[string(key)]
	if e == nil {
		return nil, false, until
	}
	p := e.Value.(*windowed)
	if !time.Now().Before(p.until) {
		w.remove(e)
		return nil, false, until
	}
	p.found++
	return p.holder, p.found == foundOften, p.until
}

// at is the key's present entry, or nil.
func (w *window) at(key []byte) *list.Element {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pages[string(key)]
}

// drop forgets that entry, if it is still there.
func (w *window) drop(e *list.Element) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(e)
}

func (w *window) used() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

// remove takes an entry out; nil, and one that has been taken out before, is
// none.
func (w *window) remove(e *list.Element) *windowed {
	if e == nil || w.pages[e.Value.(*windowed).holder.key] != e {
		return nil
	}
	p := w.order.Remove(e).(*windowed)
	delete(w.pages, p.holder.key)
	w.bytes -= p.cost
	return p
}
