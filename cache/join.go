package cache

import (
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/tidwall/btree"

	"listedge/cache/freshness"
)

// A page that is not stored is joined of entries in memory that cover it:
// freshness.Join says when that is the page that the origin would bring.
//
//	wanted position ──► index: entries that begin there, or before ──► freshness.Join
//	                                                     every part is current ──► rows are copied
//
// A row that comes in at the head of a list gives every later page another key; so
// without this a walk costs a query a page after each such change.

// Place is where a page is in its list.
type Place struct {
	List  []byte           // names the list: its bytes are of no other one
	Begin freshness.Extent // the page's, without what only its rows tell
	Limit int              // of rows
	Rows  Rows
}

// Rows reads and makes bodies of pages of a list. Its methods may be called at once.
type Rows interface {
	// Starts appends where each row of a body begins, and one element more: row i is
	// body[starts[i]:starts[i+1]-1]. Without an element it is not a page's body.
	Starts(starts []uint32, body []byte) []uint32
	// Position is that of a row in the list; Unknown where it cannot be told.
	Position(row []byte) freshness.Bound
	// Join makes a page of rows, each part with commas between its rows. more says
	// that there are rows behind it. ok is false where the origin would not bring it.
	Join(parts [][]byte, more bool) (body []byte, next string, ok bool)
}

const (
	// joinCandidates are the entries that are looked at for one part: the last ones
	// that begin at its position or before.
	joinCandidates = 4
	// joinTries is how often a part that is stale is left for another one. Then the page
	// is read: what is tried in vain must cost little beside a query.
	joinTries = 3
	// joinedOften is how often a page is joined before it is stored. It has no row that
	// is not in memory already; and of a list that changes, each walk has other pages:
	// storing them all fills memory with copies (402 MB where 120 do) and takes longer.
	// But a page that many ask for is to be a hit.
	joinedOften = 4
	// indexedSize is what the index needs for an entry, in bytes: its key, the tree, the
	// weak pointer and the clean-up.
	indexedSize = 288
	// joinedPages are so many that are counted, at 8 bytes each.
	joinedPages = 1 << 14
)

// joiner finds the entries of a list by where they begin.
//
// Invariant: slots has no more elements than there are slots that the collector has not
// freed. An evicted slot is of use until then.
type joiner struct {
	joined atomic.Uint64              // pages
	counts [joinedPages]atomic.Uint64 // of pages joined of late: the hash of a key, its last byte the count

	mu    sync.RWMutex // guards slots
	slots btree.Map[string, weak.Pointer[slot]]
}

// appendKey appends the key of the slot of a page that begins there. Keys of one list
// are in its order, longer pages behind shorter ones.
func (p *Place) appendKey(dst []byte, begin *freshness.Bound, limit int) []byte {
	dst = append(dst, p.List...)
	dst = binary.BigEndian.AppendUint32(dst, p.Begin.NameOrder)
	return append(begin.AppendKey(dst, p.Begin.Order), byte(limit))
}

// add notes the slot of a page that has just been stored.
func (x *joiner) add(p *Place, s *slot) {
	e := s.entry.Load()
	if p == nil || e.Extent == nil || !e.Extent.CanJoin() {
		return
	}
	at := *p
	at.Begin.NameOrder = e.Extent.NameOrder
	key, pointer := string(at.appendKey(nil, &e.Extent.After, p.Limit)), weak.Make(s)
	x.mu.Lock()
	defer x.mu.Unlock()
	if was, _ := x.slots.Set(key, pointer); was != pointer {
		runtime.AddCleanup(s, x.remove, indexed{key, pointer})
	}
}

type indexed struct {
	key  string
	slot weak.Pointer[slot]
}

// remove removes a slot that has been freed, unless another one has its key.
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
	list := key[:len(p.List)+4]
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

// listed are the rows of an entry.
type listed struct {
	slot   *slot
	entry  *Entry
	rows   Rows
	starts []uint32
}

// Len implements freshness.Listed.
func (l *listed) Len() int { return len(l.starts) - 1 }

// Position implements freshness.Listed.
func (l *listed) Position(i int) freshness.Bound {
	b := l.rows.Position(l.entry.Body[l.starts[i] : l.starts[i+1]-1])
	if tags := l.entry.Extent.Tags; b.Kind == freshness.At && (i >= len(tags) || tags[i] != freshness.Tag(b.ID)) {
		return freshness.Bound{} // the extent is of another body
	}
	return b
}

// between are the bytes of some rows.
func (l *listed) between(from, to int) []byte {
	if from == to {
		return nil
	}
	return l.entry.Body[l.starts[from] : l.starts[to]-1]
}

// cover finds the entries that cover the place, without some that are stale; nil if there
// are none.
func (x *joiner) cover(p *Place, stale []*Entry) (*freshness.Join, []*listed) {
	var space [joinCandidates]*slot
	var parts []*listed
	j := freshness.NewJoin(p.Begin, p.Limit)
	for !j.Complete {
		added := false
		at := j.At()
		for _, s := range x.before(p, &at, space[:0]) {
			e := s.entry.Load()
			if slices.Contains(stale, e) {
				continue
			}
			l := &listed{slot: s, entry: e, rows: p.Rows, starts: p.Rows.Starts(make([]uint32, 0, p.Limit+2), e.Body)}
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

// canJoin finds the entries that a page can be joined of, and gives it its validity; ok
// is false if there are none.
func (c *Cache) canJoin(p *Place, v *freshness.Validity) (j *freshness.Join, parts []*listed, ok bool) {
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

// isOften counts a page that was joined, and says whether that was often. Another page
// may take its place.
func (x *joiner) isOften(key []byte) bool {
	h, _ := hash(key)
	count := &x.counts[h%joinedPages]
	n := uint64(1)
	if was := count.Load(); was>>8 == h>>8 {
		n = min(was&(1<<8-1)+1, joinedOften)
	}
	count.Store(h&^(1<<8-1) | n)
	return n == joinedOften
}

// fromMemory joins the entry of others in memory, and stores it if there is a stale one
// in its place, or it is asked for often.
func (l *lookup) fromMemory() *Entry {
	e := l.join(l.fill.Place)
	if e != nil && (l.memory.get(l.key) != nil || l.joiner.isOften(l.key)) {
		l.joiner.add(l.fill.Place, l.memory.put(l.key, e, l.life()))
	}
	return e
}

// join makes the page's entry of others; nil if they do not cover it.
func (c *Cache) join(p *Place) *Entry {
	e := &Entry{joined: true}
	j, parts, ok := c.canJoin(p, &e.Validity)
	if !ok {
		return nil
	}
	rows := make([][]byte, len(parts))
	for i, part := range parts {
		rows[i] = part.between(j.Parts[i].From, j.Parts[i].To)
		c.memory.keep(part.slot, c.life())
	}
	body, next, ok := p.Rows.Join(rows, j.More())
	if !ok {
		return nil
	}
	e.set(body, next)
	c.joiner.joined.Add(1)
	return e
}
