package cache

import (
	"container/list"
	"sync"
	"time"
)

// window keeps pages that ristretto turns away, at once or later, for a while:
// first in, first out, in bytes of their own. Ristretto keeps what is asked for
// often, and of a new page nobody can know that; without a window, which the
// algorithm was described with, a page that was read ahead of its reader is
// gone when the reader comes, as soon as memory is full.
type window struct {
	left func() // told of each page that had to go before its time

	mu    sync.Mutex // guards all below
	most  int64      // bytes
	pages map[string]*list.Element
	order list.List // of *windowed, the oldest first
	bytes int64
}

type windowed struct {
	holder *holder
	size   int64 // bytes
	found  int   // how often
}

// windowShare is which part of what pages may fill the window has.
const windowShare = 1. / 16

// foundOften is how often a page is found in the window before it is offered to
// ristretto once more.
const foundOften = 2

func newWindow(most int64, left func()) *window {
	return &window{most: most, left: left, pages: map[string]*list.Element{}}
}

// keep keeps the holder's page, unless it is larger than the window.
func (w *window) keep(h *holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(w.pages[string(h.key)])
	p := &windowed{holder: h, size: h.size()}
	if p.size > w.most {
		w.left()
		return
	}
	w.pages[string(h.key)] = w.order.PushBack(p)
	w.bytes += p.size
	for now := time.Now(); w.bytes > w.most; {
		if oldest := w.remove(w.order.Front()); oldest.holder.lives(now) {
			w.left()
		}
	}
}

// get returns the key's holder, or nil, and whether this was the time to offer
// it to ristretto.
func (w *window) get(key []byte) (h *holder, often bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.pages[string(key)]
	if e == nil {
		return nil, false
	}
	p := e.Value.(*windowed)
	if !p.holder.lives(time.Now()) {
		w.remove(e)
		return nil, false
	}
	p.found++
	return p.holder, p.found == foundOften
}

// at is the key's present entry, or nil.
func (w *window) at(key []byte) *list.Element {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pages[string(key)]
}

// holds says whether the holder is the one that its key finds.
func (w *window) holds(h *holder) bool {
	e := w.at(h.key)
	return e != nil && e.Value.(*windowed).holder == h
}

// drop forgets that entry, if it is still there.
func (w *window) drop(e *list.Element) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(e)
}

// close empties the window, for good.
func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most, w.bytes = 0, 0
	w.order.Init()
	clear(w.pages)
}

func (w *window) used() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

// remove takes an entry out; nil, and one that has been taken out before, is
// none.
func (w *window) remove(e *list.Element) *windowed {
	if e == nil || w.pages[string(e.Value.(*windowed).holder.key)] != e {
		return nil
	}
	p := w.order.Remove(e).(*windowed)
	delete(w.pages, string(p.holder.key))
	w.bytes -= p.size
	return p
}
