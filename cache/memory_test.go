package cache_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// Virtual time: ristretto's own ticker runs in it, too.
func TestExpiredEntriesDisappear(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		for i := range 100 {
			forward(t, c, queryOf(fmt.Sprint(i)), brings("page"))
		}
		boottimetest.Pass(ttl + maxStale + 10*time.Second)
		if s := c.Stats(); s.MemoryBytes != 0 || s.Evicted != 0 {
			t.Errorf("%d bytes are left of expired pages; %d evicted, but there was room", s.MemoryBytes, s.Evicted)
		}
	})
}

// liveHeap is the size of the heap after a garbage collection.
func liveHeap() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC() // the first empties pools into their victims, the second empties these
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

func TestMemoryBudget(t *testing.T) {
	const budget = 8 << 20
	tiny := []byte("{}")
	short, usual, long := items(1500), items(18_000), items(36_000)
	q := func(i int) *page.Query {
		return &page.Query{List: listtest.Items, Tenant: fmt.Sprint(i), Search: fmt.Sprintf("search for number %d", i), Limit: 50}
	}
	for _, c := range []struct {
		name string
		puts int // enough to fill the budget several times
		keys int
		page func(i int) []byte
	}{
		{"tiny pages", 15_000, 15_000, func(int) []byte { return tiny }},
		{"short pages", 6_000, 6_000, func(int) []byte { return short }},
		{"usual pages", 2_000, 2_000, func(int) []byte { return usual }},
		{"all sizes", 5_000, 5_000, func(i int) []byte { return [][]byte{tiny, short, usual, long}[i%4] }},
		{"pages that grow", 16_000, 4_000, func(i int) []byte { return [][]byte{tiny, tiny, usual, long}[i/4_000] }},
		{"pages that grow and shrink", 12_000, 3_000, func(i int) []byte { return [][]byte{tiny, usual}[i/3_000%2] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := liveHeap()
			m := boottimetest.NewMachine()
			node := open(t, cache.Options{Memory: budget, TTL: time.Minute, MaxStale: 1000 * time.Hour, Clock: m.Clock})
			empty := liveHeap() - before
			peak := int64(0)
			for i := range c.puts {
				if i%c.keys == 0 {
					m.Sleep(time.Hour) // what is in memory is stale
				}
				forward(t, node, q(i%c.keys), brings(string(c.page(i)))).Entry.Deflate()
				node.Hit(q(rand.IntN(c.keys)), time.Now()) // so that some are requested more often than others
				peak = max(peak, node.Stats().MemoryBytes)
			}
			node.origins.of = map[page.Query]origin{} // clear would keep the buckets
			live := liveHeap() - before
			accounted := node.Stats().MemoryBytes
			t.Logf("live %d of %d bytes; accounted %d, peak %d; empty %d", live, budget, accounted, peak, empty)
			if live > budget*12/10 {
				t.Errorf("%d bytes are live, of a budget of %d", live, budget)
			}
			if live < budget/2 || accounted < budget/2 {
				t.Errorf("%d bytes are live, %d accounted for: much of the budget of %d is not used", live, accounted, budget)
			}
			if peak > budget {
				t.Errorf("%d bytes were accounted for, of a budget of %d", peak, budget)
			}
		})
	}
}

// Pages of other limits and cursors take no memory for rows that the replica has.
func TestPagesShareTheirRows(t *testing.T) {
	const rows, text = 256, 10_000 // ids have a byte
	c := open(t, cache.Options{Memory: 64 << 20, TTL: time.Hour, MaxStale: time.Hour, Bound: time.Hour})
	read := page.Read{End: true}
	for i := range rows {
		read.Rows = append(read.Rows, rowAt(i, string(noise(text))))
	}
	forward(t, c, queryOf("q"), follow(c).reads(read))
	before := liveHeap()
	for i := range read.Rows {
		if r, err := c.Stored(behind(queryOf("q"), &read.Rows[i])); err != nil || r.Source != cache.Memory {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if each := (liveHeap() - before) / rows; each > text/2 {
		t.Errorf("a page of three rows takes %d bytes more", each)
	}
}
