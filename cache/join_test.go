package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"listedge/cache/freshness"
	"listedge/internal/lists"
)

// numbers is a list whose rows are numbers, ordered by createdAt: the greatest number
// first. A body is {"9,8,7}, and {"9,8,7} more if there are more rows.
type numbers struct {
	mu   sync.Mutex // guards list
	list []int
}

const numbersHead = `{"`

func (n *numbers) Starts(starts []uint32, body []byte) []uint32 {
	end := bytes.IndexByte(body, '}')
	if !bytes.HasPrefix(body, []byte(numbersHead)) || end < 0 {
		return starts
	}
	for at := len(numbersHead); at < end; {
		starts = append(starts, uint32(at))
		comma := bytes.IndexByte(body[at:end], ',')
		if comma < 0 {
			break
		}
		at += comma + 1
	}
	return append(starts, uint32(end+1))
}

func (n *numbers) Position(row []byte) freshness.Bound {
	i, err := strconv.Atoi(string(row))
	if err != nil {
		return freshness.Bound{}
	}
	return positionOf(i)
}

func (n *numbers) Join(parts [][]byte, more bool) (body []byte, next string, ok bool) {
	parts = slices.DeleteFunc(parts, func(b []byte) bool { return len(b) == 0 })
	rows := string(bytes.Join(parts, []byte{','}))
	return []byte(numbersHead + rows + map[bool]string{true: "} more", false: "}"}[more]), "next of " + rows, true
}

func positionOf(i int) freshness.Bound {
	return freshness.Bound{Kind: freshness.At, CreatedAt: int64(i), ID: rowOf(i).ID}
}

func rowOf(i int) lists.Row {
	return lists.Row{ID: [16]byte{2: byte(i >> 8), 3: byte(i)}, CreatedAt: int64(i)}
}

// page is the page of limit numbers after the given one, 0 = from the start. queries counts
// the queries that read it.
func (n *numbers) page(b *fakeFollower, behind, limit int, queries *atomic.Int64) (key []byte, fill Fill) {
	begin := freshness.Extent{After: freshness.Bound{Kind: freshness.Open}}
	if behind > 0 {
		begin.After = positionOf(behind)
	}
	primary := func(context.Context, string) (FillResult, error) {
		queries.Add(1)
		b.mu.Lock()
		defer b.mu.Unlock()
		n.mu.Lock()
		defer n.mu.Unlock()
		e := begin
		e.End = freshness.Bound{Kind: freshness.Open}
		var rows []string
		for _, i := range n.list {
			if behind > 0 && i >= behind {
				continue
			}
			e.Tags = append(e.Tags, freshness.Tag(rowOf(i).ID))
			if len(rows) == limit {
				e.End = positionOf(i)
				break
			}
			rows = append(rows, fmt.Sprint(i))
		}
		body, next, _ := n.Join([][]byte{[]byte(strings.Join(rows, ","))}, e.End.Kind == freshness.At)
		return FillResult{Body: body, Next: next, Snapshot: fmt.Sprintf("%d:%d:", b.xid, b.xid), Extent: &e}, nil
	}
	return keyOf(fmt.Sprint(behind, " ", limit)), Fill{Primary: primary, Place: &Place{List: []byte("numbers"), Begin: begin, Limit: limit, Rows: n}}
}

// change inserts or deletes numbers, in one transaction that is visible at once.
func (n *numbers) change(b *fakeFollower, insert []int, remove ...int) {
	var rows []lists.Row
	n.mu.Lock()
	for _, i := range remove {
		n.list = slices.DeleteFunc(n.list, func(o int) bool { return o == i })
		row := rowOf(i)
		row.Flags = lists.Gone
		rows = append(rows, row)
	}
	for _, i := range insert {
		n.list = append(n.list, i)
		rows = append(rows, rowOf(i))
	}
	slices.SortFunc(n.list, func(a, b int) int { return b - a })
	n.mu.Unlock()
	before := b.applied.Load()
	b.changeRows(listA, rows...)
	eventually(b.t, "the change is applied", func() bool { return b.applied.Load() > before+1 })
}

// startNumbers stores the numbers from 40 down to 1 in memory, in pages of 10, and waits
// for a proof that is later than these pages.
func startNumbers(t *testing.T, o Options) (*numbers, *fakeFollower, *Cache) {
	b, c := followed(t, o)
	n := &numbers{}
	for i := 40; i > 0; i-- {
		n.list = append(n.list, i)
	}
	for _, behind := range []int{0, 31, 21, 11} {
		n.store(t, b, c, behind, 10)
	}
	awaitProof(t, c)
	return n, b, c
}

// store reads a page into memory. If nothing is proven at that moment, it does so again.
func (n *numbers) store(t *testing.T, b *fakeFollower, c *Cache, behind, limit int) {
	t.Helper()
	var queries atomic.Int64
	key, fill := n.page(b, behind, limit, &queries)
	eventually(t, "a page in memory", func() bool {
		r, err := c.Forward(key, listA, fill)
		if err != nil || r.Joined {
			t.Fatalf("%+v, %v", r, err)
		}
		return r.Entry.Admitted()
	})
}

// awaitProof waits for a proof that begins after the call.
func awaitProof(t *testing.T, c *Cache) {
	t.Helper()
	now := c.clock.Now()
	eventually(t, "a proof", func() bool { return c.tracker.Stats().Proof > now && c.Mode() == ModeFollowed })
}

// ask returns the page, whether it was joined, and how many queries it cost. If the node
// has no proof for a moment, it reads a page that it would otherwise join.
func (n *numbers) ask(t *testing.T, b *fakeFollower, c *Cache, behind, limit int) (body string, joined bool, queries int64) {
	t.Helper()
	var count atomic.Int64
	key, fill := n.page(b, behind, limit, &count)
	r, err := c.Forward(key, listA, fill)
	if err != nil {
		t.Fatal(err)
	}
	if r.Joined && (r.Source != Memory || !r.Local || r.Err != nil || r.Age > patient) {
		t.Errorf("%+v", r)
	}
	return string(r.Entry.Body), r.Joined, count.Load()
}

func TestPagesAreJoined(t *testing.T) {
	for name, c := range map[string]struct {
		insert, remove []int
		behind, limit  int
		want           string
		joined         bool
	}{
		"two pages":                         {nil, nil, 35, 6, `{"34,33,32,31,30,29} more`, true},
		"a part of one":                     {nil, nil, 35, 3, `{"34,33,32} more`, true},
		"four":                              {nil, nil, 40, 31, `{"39,38,37,36,35,34,33,32,31,30,29,28,27,26,25,24,23,22,21,20,19,18,17,16,15,14,13,12,11,10,9} more`, true},
		"the start of the list":             {nil, nil, 0, 12, `{"40,39,38,37,36,35,34,33,32,31,30,29} more`, true},
		"the end of the list":               {nil, nil, 13, 20, `{"12,11,10,9,8,7,6,5,4,3,2,1}`, true},
		"just the end":                      {nil, nil, 11, 10, `{"10,9,8,7,6,5,4,3,2,1}`, true},
		"behind the end":                    {nil, nil, 1, 10, `{"}`, true},
		"behind a row that came in":         {[]int{50}, nil, 36, 6, `{"35,34,33,32,31,30} more`, true},
		"a row came in":                     {[]int{50}, nil, 0, 3, `{"50,40,39} more`, false},
		"behind a row that left":            {nil, []int{38}, 36, 3, `{"35,34,33} more`, true},
		"a row left":                        {nil, []int{30}, 36, 6, `{"35,34,33,32,31,29} more`, false},
		"the row behind the page left":      {nil, []int{29}, 36, 6, `{"35,34,33,32,31,30} more`, false},
		"one that is not looked at left":    {nil, []int{28}, 36, 6, `{"35,34,33,32,31,30} more`, true},
		"the last row left":                 {nil, []int{1}, 3, 1, `{"2}`, false},
		"behind a position that left":       {nil, []int{36}, 36, 6, `{"35,34,33,32,31,30} more`, true},
		"both, at once, elsewhere":          {[]int{60, 50}, []int{5, 40}, 36, 6, `{"35,34,33,32,31,30} more`, true},
		"a row came in behind the last one": {[]int{0}, nil, 3, 5, `{"2,1,0}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, b, cache := startNumbers(t, Options{})
			if c.insert != nil || c.remove != nil {
				n.change(b, c.insert, c.remove...)
			}
			key, _ := n.page(b, c.behind, c.limit, nil)
			eventually(t, fmt.Sprint("joined: ", c.joined), func() bool {
				body, joined, queries := n.ask(t, b, cache, c.behind, c.limit)
				if body != c.want {
					t.Fatalf("%s instead of %s", body, c.want)
				}
				if joined == c.joined && (queries == 0 || !joined) {
					return true
				}
				if joined {
					t.Fatal("joined")
				}
				cache.memory.ristretto.Del(key) // there was no proof for a moment: try again
				return false
			})
		})
	}
}

// Nothing is joined without proof, nor if entries are judged by age.
func TestNothingIsJoinedWithoutTrust(t *testing.T) {
	n, b, c := startNumbers(t, Options{})
	b.beSilent(true)
	eventually(t, "untrusted", mode(c, ModeUntrusted))
	if body, joined, queries := n.ask(t, b, c, 35, 6); joined || queries != 1 {
		t.Errorf("%s: joined %t, %d queries", body, joined, queries)
	}
	c.SetTTLMode(true)
	if body, joined, queries := n.ask(t, b, c, 36, 6); joined || queries != 1 {
		t.Errorf("by age, %s: joined %t, %d queries", body, joined, queries)
	}
}

// A joined page that is requested often is stored. Without proof it is not fresh, however
// young it is.
func TestAPageThatIsJoinedOftenIsStored(t *testing.T) {
	n, b, c := startNumbers(t, Options{})
	key, _ := n.page(b, 35, 6, nil)
	joins := 0
	eventually(t, "it is stored", func() bool {
		_, joined, _ := n.ask(t, b, c, 35, 6)
		if joined {
			joins++
		}
		s := c.memory.get(key)
		if s != nil && !s.entry.Load().joined { // read: there was no proof for a moment
			c.memory.ristretto.Del(key)
			return false
		}
		return s != nil
	})
	if joins != joinsBeforeStore || c.Stats().Joined != joinsBeforeStore {
		t.Errorf("after %d joins, of %d", joins, c.Stats().Joined)
	}
	n.change(b, []int{50}) // not of this page
	eventually(t, "a hit", func() bool { _, ok := c.Hit(key, time.Now()); return ok })
	n.change(b, nil, 30)
	if r, ok := c.Hit(key, time.Now()); ok {
		t.Errorf("after a row left: %s", r.Entry.Body)
	}
	s := c.memory.get(key)
	c.SetTTLMode(true)
	if state := c.judge(s.entry.Load(), c.clock.Now()); state == freshness.Fresh {
		t.Error("fresh by age")
	}
}

// A joined entry replaces a stale one at once: it needs no additional memory.
func TestAStaleEntryIsReplacedByAJoinedOne(t *testing.T) {
	n, b, c := startNumbers(t, Options{})
	var queries atomic.Int64
	key, _ := n.page(b, 35, 6, &queries)
	eventually(t, "a joined page in its place", func() bool {
		c.memory.put(key, NewEntry([]byte("stale"), ""), time.Hour)
		_, _, _ = n.ask(t, b, c, 35, 6)
		e := c.memory.get(key).entry.Load()
		return e.joined && string(e.Body) == `{"34,33,32,31,30,29} more`
	})
}

// The index keeps no entry in memory, and forgets evicted ones.
func TestTheIndexForgetsWhatIsGone(t *testing.T) {
	n, b, c := startNumbers(t, Options{})
	known := func() int {
		c.joiner.mu.RLock()
		defer c.joiner.mu.RUnlock()
		return c.joiner.slots.Len()
	}
	if known() != 4 {
		t.Fatalf("%d entries are known", known())
	}
	for range 2 { // an evicted entry must not remove the newer one of the same key from the index
		key, _ := n.page(b, 21, 10, nil)
		c.memory.ristretto.Del(key)
		eventually(t, "it is forgotten", func() bool { runtime.GC(); return known() == 3 })
		key, fill := n.page(b, 25, 7, nil)
		if r, err := c.Stored(key, listA, fill.Place); !errors.Is(err, ErrNotStored) {
			t.Errorf("joined of an evicted entry: %s", r.Entry.Body)
		}
		n.store(t, b, c, 21, 10)
	}
	if known() != 4 {
		t.Errorf("%d entries are known", known())
	}
}

// Joining counts as a request for the entries that a page is joined of, so they are not evicted.
func TestPartsAreKept(t *testing.T) {
	n, b, c := startNumbers(t, Options{})
	key, _ := n.page(b, 31, 10, nil)
	s := c.memory.get(key)
	soon := time.Now().Add(c.life() / 3).UnixNano()
	eventually(t, "one more life", func() bool {
		s.expiresAt.CompareAndSwap(s.expiresAt.Load(), soon)
		_, joined, _ := n.ask(t, b, c, 35, 6)
		at := s.expiresAt.Load()
		if joined && at == soon {
			t.Fatal("joined, and not kept")
		}
		key, _ := n.page(b, 35, 6, nil)
		c.memory.ristretto.Del(key)
		return at > soon
	})
	if c.memory.get(key) != s {
		t.Error("the part was evicted")
	}
}

// A page that can be joined is not prefetched.
func TestAPageThatCanBeJoinedIsNotPrefetched(t *testing.T) {
	n, b, c := startNumbers(t, Options{})
	var queries atomic.Int64
	key, fill := n.page(b, 35, 6, &queries)
	eventually(t, "no prefetch", func() bool {
		begun := c.PrefetchNext(key, listA, fill)
		if begun { // there was no proof for a moment
			eventually(t, "it is read", func() bool { return queries.Load() > 0 })
			queries.Store(0)
			c.memory.ristretto.Del(key)
		}
		return !begun
	})
}

// A request with only-if-cached is served by joining, too.
func TestStoredIsJoined(t *testing.T) {
	n, b, c := startNumbers(t, Options{})
	key, fill := n.page(b, 35, 6, nil)
	eventually(t, "joined", func() bool {
		r, err := c.Stored(key, listA, fill.Place)
		return err == nil && r.Joined && string(r.Entry.Body) == `{"34,33,32,31,30,29} more`
	})
}

// A request with only-if-cached does not use a look-up that found the page too long ago.
func TestStoredSharesNothingTooOld(t *testing.T) {
	n, b, c := startNumbers(t, Options{})
	key, fill := n.page(b, 35, 6, nil)
	name := string(key) + " stored"
	var old Result
	eventually(t, "joined", func() (ok bool) {
		var err error
		old, err = c.Stored(key, listA, fill.Place)
		return err == nil
	})
	n.change(b, nil, 32)
	f, _ := c.flights.enter(name) // of a process that was paused until now
	f.result = old
	close(f.done)
	time.AfterFunc(20*time.Millisecond, func() {
		c.flights.mu.Lock()
		defer c.flights.mu.Unlock()
		delete(c.flights.byName, name)
	})
	if r, err := c.Stored(key, listA, fill.Place); err == nil {
		t.Errorf("it shows a row that was deleted: %s", r.Entry.Body)
	}
}

// While a writer changes the list, clients walk it. No page lacks a number that was in the
// list throughout, and none has a number that was removed before the request.
func TestJoiningBesideChanges(t *testing.T) {
	n, b, c := startNumbers(t, Options{Memory: 1 << 20})
	var latest atomic.Int64 // the number that was inserted last
	latest.Store(40)
	done := make(chan struct{})
	var walkers sync.WaitGroup
	for range 4 {
		walkers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				seen := map[string]bool{}
				for behind := 0; ; {
					body, _, _ := n.ask(t, b, c, behind, 7)
					rows := body[len(numbersHead):strings.IndexByte(body, '}')]
					for _, row := range strings.Split(rows, ",") {
						if i, _ := strconv.Atoi(row); seen[row] || i > int(latest.Load()) || behind > 0 && i >= behind {
							t.Errorf("%s behind %d, of %d", body, behind, latest.Load())
						} else {
							seen[row], behind = true, i
						}
					}
					if !strings.HasSuffix(body, "more") {
						break
					}
				}
				for i := range 40 {
					if !seen[strconv.Itoa(i+1)] {
						t.Errorf("a walk without %d", i+1)
					}
				}
			}
		})
	}
	for i := range 60 {
		latest.Add(1)
		n.change(b, []int{41 + i})
	}
	close(done)
	walkers.Wait()
	if c.Stats().Joined == 0 {
		t.Error("nothing was joined")
	}
}
