package edge

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// busiest finds the keys with the most requests, in bounded memory, by the
// space-saving algorithm (Metwally and others, 2005): a key that has no counter takes
// the smallest one and goes on counting from there. So every key with more than
// 1/busiestKeys of the requests has a counter, and none is counted too low.
//
// One request of busiestSample of a connection is counted, for all of them: a request
// waits for the lock so much less often.
type busiest struct {
	mu   sync.Mutex // guards all below
	now  window
	last window // the one before
}

const (
	busiestKeys   = 128
	busiestSample = 16
	busiestWindow = time.Minute // and then counting begins again; the last window is kept
)

type window struct {
	began  time.Time
	counts map[uuid.UUID]*keyCount
}

type keyCount struct {
	workspace         uuid.UUID
	requests, refused uint64
}

// KeyUse is how much a key is used, by this node's requests of the last one or two
// minutes.
type KeyUse struct {
	Key, Workspace    uuid.UUID
	Requests, Refused float64 // a second; refused: 429
}

// count counts a request of the key, in place of busiestSample.
func (b *busiest) count(key, workspace uuid.UUID, refused bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn(now)
	c := b.now.counts[key]
	if c == nil {
		c = b.now.take()
		c.workspace, c.refused = workspace, 0
		b.now.counts[key] = c
	}
	c.requests += busiestSample
	if refused {
		c.refused += busiestSample
	}
}

// turn begins a new window if the present one is over.
func (b *busiest) turn(now time.Time) {
	if now.Sub(b.now.began) < busiestWindow {
		return
	}
	b.last = b.now
	if now.Sub(b.last.began) >= 2*busiestWindow { // nobody asked for long
		b.last = window{began: now}
	}
	b.now = window{now, map[uuid.UUID]*keyCount{}}
}

// take returns a counter for another key: a new one, or the smallest with its count.
func (w *window) take() *keyCount {
	if len(w.counts) < busiestKeys {
		return &keyCount{}
	}
	var least uuid.UUID
	var found *keyCount
	for key, c := range w.counts {
		if found == nil || c.requests < found.requests {
			least, found = key, c
		}
	}
	delete(w.counts, least)
	return found
}

// list returns the keys with the most requests, at most that many.
func (b *busiest) list(most int, now time.Time) []KeyUse {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn(now)
	seconds := max(1, now.Sub(b.now.began).Seconds())
	if b.last.counts != nil {
		seconds = now.Sub(b.last.began).Seconds()
	}
	sums := map[uuid.UUID]*KeyUse{}
	for _, w := range []window{b.last, b.now} {
		for key, c := range w.counts {
			if sums[key] == nil {
				sums[key] = &KeyUse{Key: key, Workspace: c.workspace}
			}
			sums[key].Requests += float64(c.requests) / seconds
			sums[key].Refused += float64(c.refused) / seconds
		}
	}
	all := make([]KeyUse, 0, len(sums))
	for _, use := range sums {
		all = append(all, *use)
	}
	slices.SortFunc(all, func(a, b KeyUse) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), slices.Compare(a.Key[:], b.Key[:]))
	})
	return all[:min(most, len(all))]
}

// BusiestKeys are the keys with the most requests, at most that many.
func (s *Server) BusiestKeys(most int) []KeyUse { return s.busiest.list(most, time.Now()) }
