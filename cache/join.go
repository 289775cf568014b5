package cache

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/tidwall/btree"

	"listedge/cache/freshness"
)

// A page that is not stored is joined from entries in memory that cover it.
// freshness.Join decides whether the result equals the page that the origin would return.
//
//	wanted position ──► index: entries that begin there, or before ──► freshness.Join
//	                                                     every part is current ──► rows are copied
//
// Reason: a row inserted at the head of a list gives every later page another key.
// Without joining, a client that walks the list after such a change costs one query a
// page.

// Place is where a page is in its list.
type Place struct {
	List  []byte           // names the list: its bytes are of no other one
	Begin freshness.Extent // the page's extent, without the fields that depend on its rows
	Limit int              // of rows
	Rows  Rows
}

// Rows reads and makes bodies of pages of a list. Its methods may be called concurrently.
type Rows interface {
	// Starts appends where each row of a body begins, and one more element: row i is
	// body[starts[i]:starts[i+1]-1]. It appends nothing if body is not that of a page.
	Starts(starts []uint32, body []byte) []uint32
	// Position returns the row's position in the list, or Unknown.
	Position(row []byte) freshness.Bound
	// Join makes a page of rows. Each part is some rows with commas between them. more
	// says that the list goes on after the page. ok is false if the origin would return
	// another page for these rows.
	Join(parts [][]byte, more bool) (body []byte, next string, ok bool)
}

const (
	// joinCandidates is how many entries are tried for one part: the last ones that
	// begin at its position or before.
	joinCandidates = 4
	// joinTries is how many combinations of entries are tried, each without the parts
	// that were stale in the ones before. Then the page is read from the origin: failed
	// tries must cost little compared with a query.
	joinTries = 3
	// joinsBeforeStore is how often a page is joined before it is stored. Its rows are
	// in memory already, and each walk through a changing list has other pages: storing
	// them all fills memory with copies (402 MB instead of 120 MB) and takes longer.
	// A page that is requested often is stored, so that it becomes a hit.
	joinsBeforeStore = 4
	// indexedSize is what the index needs for an entry, in bytes: its key, the tree, the
	// weak pointer and the clean-up.
	indexedSize = 288
	// joinCounters is the number of counters of joined pages, 8 bytes each.
	joinCounters = 1 << 14
)

// joiner finds the entries of a list by where they begin.
//
// Invariant: the tree has at most one element for each slot that the garbage collector
// has not freed. An evicted slot can be joined until it is freed.
type joiner struct {
	joined atomic.Uint64 // pages
	// counts has for recently joined pages the hash of the key, whose last byte is
	// replaced by the number of joins.
	counts [joinCounters]atomic.Uint64

	mu    sync.RWMutex // guards slots
	slots btree.Map[string, weak.Pointer[slot]]
}

// appendKey appends the index key of a page with that beginning and limit. Keys of one
// list sort by the beginning in the list's order, then by the limit.
func (p *Place) appendKey(dst []byte, begin *freshness.Bound, limit int) []byte {
	dst = append(dst, p.List...)
	return append(begin.AppendKey(dst, p.Begin.Order), byte(limit))
}

// add adds the slot of a page that has just been stored to the index.
func (x *joiner) add(p *Place, s *slot) {
	e := s.entry.Load()
	if p == nil || e.Extent == nil || !e.Extent.CanJoin() {
		return
	}
	key, pointer := string(p.appendKey(nil, &e.Extent.After, p.Limit)), weak.Make(s)
	x.mu.Lock()
	defer x.mu.Unlock()
	if before, _ := x.slots.Set(key, pointer); before != pointer {
		runtime.AddCleanup(s, x.remove, indexed{key, pointer})
	}
}

// indexed is an element of the index.
type indexed struct {
	key  string
	slot weak.Pointer[slot]
}

// remove removes the element of a slot that has been freed, unless another slot has
// replaced it.
func (x *joiner) remove(i indexed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s, ok := x.slots.Get(i.key); ok && s == i.slot {
		x.slots.Delete(i.key)
	}
}

// before returns the last slots of the place's list that begin at the position or
// before it, the last one first.
func (x *joiner) before(p *Place, at *freshness.Bound, slots []*slot) []*slot {
	key := string(p.appendKey(make([]byte, 0, 128), at, 1<<8-1))
	list := key[:len(p.List)]
	x.mu.RLock()
	defer x.mu.RUnlock()
	freed := 0
	x.slots.Descend(key, func(key string, pointer weak.Pointer[slot]) bool {
		if !strings.HasPrefix(key, list) || freed == joinCandidates {
			return false
		}
		if s := pointer.Value(); s != nil {
			slots = append(slots, s)
		} else {
			freed++
		}
		return len(slots) < cap(slots)
	})
	return slots
}

// entryRows implements freshness.Listed: the rows of an entry.
type entryRows struct {
	slot   *slot
	entry  *Entry
	rows   Rows
	starts []uint32
}

// Len implements freshness.Listed.
func (l *entryRows) Len() int { return len(l.starts) - 1 }

// Position implements freshness.Listed.
func (l *entryRows) Position(i int) freshness.Bound {
	b := l.rows.Position(l.entry.Body[l.starts[i] : l.starts[i+1]-1])
	if tags := l.entry.Extent.Tags; b.Kind == freshness.At && (i >= len(tags) || tags[i] != freshness.Tag(b.ID)) {
		return freshness.Bound{} // the extent does not belong to this body
	}
	return b
}

// between returns the bytes of the rows from "from" up to, but without, "to".
func (l *entryRows) between(from, to int) []byte {
	if from == to {
		return nil
	}
	return l.entry.Body[l.starts[from] : l.starts[to]-1]
}

// cover finds entries that cover the place. It skips those in stale. It returns nil if
// the other entries in memory do not cover the place.
func (x *joiner) cover(p *Place, stale []*Entry) (*freshness.Join, []*entryRows) {
	var space [joinCandidates]*slot
	var parts []*entryRows
	j := freshness.NewJoin(p.Begin, p.Limit)
	for !j.Complete {
		added := false
		at := j.At()
		for _, s := range x.before(p, &at, space[:0]) {
			e := s.entry.Load()
			if slices.Contains(stale, e) {
				continue
			}
			l := &entryRows{slot: s, entry: e, rows: p.Rows, starts: p.Rows.Starts(make([]uint32, 0, p.Limit+2), e.Body)}
			if added = j.Add(&e.Validity, l); added {
				parts = append(parts, l)
				break
			}
		}
		if !added {
			return nil, nil
		}
	}
	return j, parts
}

// findParts finds current entries that cover the place, and sets the validity of the
// page that is joined from them. ok is false if there are none.
func (c *Cache) findParts(p *Place, v *freshness.Validity) (j *freshness.Join, parts []*entryRows, ok bool) {
	if p == nil || !p.Begin.CanBegin() || !c.following.Load() || !c.tracker.Trusted(c.clock.Now()) {
		return nil, nil, false
	}
	var stale []*Entry
	for range joinTries {
		if j, parts = c.joiner.cover(p, stale); j == nil {
			return nil, nil, false
		}
		i, ok := c.tracker.Join(v, j, c.clock.Now())
		if ok {
			return j, parts, true
		}
		if i < 0 {
			return nil, nil, false
		}
		stale = append(stale, parts[i].entry)
	}
	return nil, nil, false
}

// countJoin counts a join of the key's page, and reports whether there were
// joinsBeforeStore of them. Another page with the same counter resets the count.
func (x *joiner) countJoin(key []byte) (often bool) {
	h, _ := hash(key)
	counter := &x.counts[h%joinCounters]
	n := uint64(1)
	if before := counter.Load(); before>>8 == h>>8 {
		n = min(before&(1<<8-1)+1, joinsBeforeStore)
	}
	counter.Store(h&^(1<<8-1) | n)
	return n == joinsBeforeStore
}

// joinFromMemory joins the page from other entries in memory, or returns nil. It stores
// the joined entry if memory has a stale one for the key, or if the page was joined often.
func (l *lookup) joinFromMemory() *Entry {
	e := l.join(l.fill.Place)
	if e != nil && (l.memory.get(l.key) != nil || l.joiner.countJoin(l.key)) {
		l.joiner.add(l.fill.Place, l.memory.put(l.key, e, l.life()))
	}
	return e
}

// join makes the page's entry from others in memory; nil if they do not cover it.
func (c *Cache) join(p *Place) *Entry {
	e := &Entry{joined: true}
	j, parts, ok := c.findParts(p, &e.Validity)
	if !ok {
		return nil
	}
	rows := make([][]byte, len(parts))
	for i, part := range parts {
		rows[i] = part.between(j.Parts[i].From, j.Parts[i].To)
		c.memory.extendLife(part.slot, c.life())
	}
	body, next, ok := p.Rows.Join(rows, j.More())
	if !ok {
		return nil
	}
	e.set(body, next)
	c.joiner.joined.Add(1)
	return e
}
