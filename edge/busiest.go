package edge

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// busiest finds the keys with the most requests, in bounded memory, by the
// space-saving algorithm (Metwally and others, 2005). If all counters are in use, a new
// key takes over the smallest counter with its count. So every key with more than
// 1/busiestKeys of the requests has a counter, and no count is too low.
//
// One of busiestSample requests on a connection is counted, as busiestSample requests.
// So requests contend less for the mutex.
type busiest struct {
	mu      sync.Mutex // guards the fields below
	current window
	last    window // the one before current
}

const (
	busiestKeys   = 128
	busiestSample = 16
	busiestWindow = time.Minute // after it, counting begins again in a new window
)

type window struct {
	began  time.Time
	counts map[uuid.UUID]*keyCount
}

type keyCount struct {
	workspace         uuid.UUID
	requests, refused uint64
}

// KeyUse is the rate at which a key is used on this node, over the last one or two
// minutes.
type KeyUse struct {
	Key, Workspace    uuid.UUID
	Requests, Refused float64 // per second; refused = answered with a 429
}

// count counts a sampled request of the key as busiestSample requests.
func (b *busiest) count(key, workspace uuid.UUID, refused bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rotate(now)
	c := b.current.counts[key]
	if c == nil {
		c = b.current.newCounter()
		c.workspace, c.refused = workspace, 0
		b.current.counts[key] = c
	}
	c.requests += busiestSample
	if refused {
		c.refused += busiestSample
	}
}

// rotate begins a new window if the current one is over.
func (b *busiest) rotate(now time.Time) {
	if now.Sub(b.current.began) < busiestWindow {
		return
	}
	b.last = b.current
	if now.Sub(b.last.began) >= 2*busiestWindow { // there was no request for at least a window
		b.last = window{began: now}
	}
	b.current = window{now, map[uuid.UUID]*keyCount{}}
}

// newCounter returns a counter for a new key. If all are in use, it takes the smallest
// counter, with its count, from its key.
func (w *window) newCounter() *keyCount {
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

// list returns the limit keys with the most requests.
func (b *busiest) list(limit int, now time.Time) []KeyUse {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rotate(now)
	seconds := max(1, now.Sub(b.current.began).Seconds())
	if b.last.counts != nil {
		seconds = now.Sub(b.last.began).Seconds()
	}
	sums := map[uuid.UUID]*KeyUse{}
	for _, w := range []window{b.last, b.current} {
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
	return all[:min(limit, len(all))]
}

// BusiestKeys returns the limit keys with the most requests.
func (s *Server) BusiestKeys(limit int) []KeyUse { return s.busiest.list(limit, time.Now()) }
