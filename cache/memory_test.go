package cache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
)

func openMemory(t testing.TB, budget int64) *memory {
	t.Helper()
	m, err := newMemory(budget)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	return m
}

// began is the base time of entries that are in no cache.
var began = time.Now()

// readNow is an entry of the list q that was read now.
func readNow(body []byte) *Entry { return entryAt(keyOf("q"), string(body), time.Since(began)) }

func TestWholeKeyIsCompared(t *testing.T) {
	m := openMemory(t, 8<<20)
	key, other := keyOf("key"), keyOf("other")
	// As after a collision of all 128 bits of the hash.
	collided := &slot{key: other}
	collided.entry.Store(readNow([]byte("other")))
	m.ristretto.Set(key, collided, 1000)
	m.ristretto.Wait()
	if _, there := m.ristretto.Get(key); !there {
		t.Fatal("the collision was not brought about")
	}
	if h := m.get(key); h != nil {
		t.Fatalf("another key's page: %s", h.entry.Load().text())
	}
	m.put(key, readNow([]byte("page")), time.Hour)
	if h := m.get(key); h == nil || h.entry.Load().text() != "page" {
		t.Fatal("the page is not found in place of the collided one")
	}
	if got := collided.entry.Load().text(); got != "other" {
		t.Fatalf("the other key's slot got %s", got)
	}
}

func TestOlderNeverReplacesNewer(t *testing.T) {
	const writers = 16
	m := openMemory(t, 8<<20)
	for round := range 200 {
		key := keyOf(fmt.Sprint(round))
		proofs := rand.Perm(writers)
		begin := make(chan struct{})
		var all sync.WaitGroup
		for _, proof := range proofs {
			all.Go(func() {
				p := entryAt(key, fmt.Sprint(proof), time.Duration(proof))
				<-begin
				kept := m.put(key, p, time.Hour).entry.Load()
				found := m.get(key)
				if kept.Proof < p.Proof || found == nil || found.entry.Load().Proof < p.Proof {
					t.Errorf("round %d: %v is followed by something older", round, proof)
				}
			})
		}
		close(begin)
		all.Wait()
		if h := m.get(key); h == nil || h.entry.Load().text() != fmt.Sprint(writers-1) {
			t.Fatalf("round %d: not the newest page was kept", round)
		}
	}
}

// Virtual time: ristretto's own ticker runs in it, too.
func TestExpiredEntriesDisappear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openMemory(t, 8<<20)
		life := func(i int) time.Duration { return time.Duration(i+1) * time.Second }
		for i := range 100 {
			m.put(keyOf(fmt.Sprint(i)), readNow(items(1000)), life(i))
		}
		boottimetest.Pass(50*time.Second + time.Millisecond)
		for i := range 100 {
			if there := m.get(keyOf(fmt.Sprint(i))) != nil; there != (life(i) > 50*time.Second) {
				t.Errorf("after 50 s, a page to live %d s: there %v", i+1, there)
			}
		}
		boottimetest.Pass(80 * time.Second)
		if left := m.used(); left != 0 {
			t.Errorf("%d bytes are left of expired pages", left)
		}
		if n := m.evicted.Load(); n != 0 {
			t.Errorf("%d evictions, but there was room", n)
		}
	})
}

// The cost that ristretto counts for an entry is what memory says that it takes, also while
// entries are replaced by smaller and larger ones, and evicted.
func TestEntriesCostWhatIsCounted(t *testing.T) {
	const keys, putters, puts = 200, 8, 1_000
	m := openMemory(t, 2<<20)
	body := items(18_000)
	var all sync.WaitGroup
	for range putters {
		all.Go(func() {
			for range puts {
				e := readNow(body[:len(body)-rand.IntN(4)*len(body)/16])
				key := keyOf(fmt.Sprint(rand.IntN(keys)))
				if s := m.get(key); s != nil && rand.IntN(2) == 0 {
					m.replace(s, e, time.Hour)
				} else {
					m.put(key, e, time.Hour)
				}
			}
		})
	}
	all.Wait()
	counted := int64(0)
	for i := range keys {
		if s := m.get(keyOf(fmt.Sprint(i))); s != nil {
			if counted += s.cost; s.size() > s.cost+s.cost/4 {
				t.Errorf("page %d costs %d bytes, ristretto counts %d", i, s.size(), s.cost)
			}
		}
	}
	if used := m.used(); counted == 0 || used < counted || used > m.ristretto.MaxCost() {
		t.Errorf("%d bytes are used, of which ristretto counts %d", used, counted)
	}
}

// liveHeap is the size of the heap after a garbage collection.
func liveHeap() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC() // the first empties pools into their victims, the second empties these
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// copied is an entry that shares no bytes with another, in both forms.
func copied(p *Entry) *Entry {
	deflate := bytes.Clone(p.Deflate())
	q := &Entry{view: p.view, texts: []string{strings.Clone(p.texts[0])}, Size: p.Size, ETag: p.ETag, CRC: p.CRC}
	q.deflated.Store(&deflate)
	return q
}

func TestMemoryBudget(t *testing.T) {
	const budget = 8 << 20
	tiny := readNow([]byte(`{"data":[],"page":{"hasMore":false,"nextCursor":null}`))
	short, usual, long := readNow(items(1500)), readNow(items(18_000)), readNow(items(36_000))
	key := func(i int) []byte {
		return AppendKey(nil, [16]byte{byte(i), byte(i >> 8), byte(i >> 16)}, fmt.Appendf(nil, "search for number %d", i), []byte{50}, nil)
	}
	for _, c := range []struct {
		name string
		puts int // enough to fill the budget several times
		keys int
		page func(i int) *Entry
	}{
		{"tiny pages", 25_000, 25_000, func(int) *Entry { return copied(tiny) }},
		{"short pages", 10_000, 10_000, func(int) *Entry { return copied(short) }},
		{"usual pages", 2_000, 2_000, func(int) *Entry { return copied(usual) }},
		{"all sizes", 5_000, 5_000, func(i int) *Entry { return copied([]*Entry{tiny, short, usual, long}[i%4]) }},
		{"pages that grow", 16_000, 4_000, func(i int) *Entry { return copied([]*Entry{tiny, tiny, usual, long}[i/4_000]) }},
		{"pages that grow and shrink", 12_000, 3_000, func(i int) *Entry { return copied([]*Entry{tiny, usual}[i/3_000%2]) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := liveHeap()
			m, err := newMemory(budget)
			if err != nil {
				t.Fatal(err)
			}
			defer m.close()
			empty := liveHeap() - before
			peak := int64(0)
			for i := range c.puts {
				m.put(key(i%c.keys), c.page(i), time.Hour)
				m.get(key(rand.IntN(c.keys))) // so that some are requested more often than others
				peak = max(peak, m.used())
			}
			live := liveHeap() - before
			accounted := m.used()
			t.Logf("live %.2f of the budget; accounted %.2f, peak %.2f; empty %.3f", share(live, budget), share(accounted, budget), share(peak, budget), share(empty, budget))
			if live > budget*12/10 {
				t.Errorf("%d bytes are live, of a budget of %d", live, budget)
			}
			if live < budget/2 || accounted < budget/2 {
				t.Errorf("%d bytes are live, %d accounted for: much of the budget of %d is not used", live, accounted, budget)
			}
			if peak > budget {
				t.Errorf("%d bytes were accounted for, of a budget of %d", peak, budget)
			}
			runtime.KeepAlive(m)
		})
	}
}

func share(part, whole int64) float64 { return float64(part) / float64(whole) }

// Pages of other limits and cursors take no memory for rows that the replica has.
func TestPagesShareTheirRows(t *testing.T) {
	const rows, text = 256, 10_000 // ids have a byte
	c := open(t, Options{Memory: 64 << 20, TTL: time.Hour, MaxStale: time.Hour, Bound: time.Hour})
	read := FillResult{End: true}
	for i := range rows {
		read.Rows = append(read.Rows, rowAt(i, string(noise(text))))
	}
	forward(t, c, keyOf("q"), follow(c).reads(read))
	before := liveHeap()
	for i := range read.Rows {
		v := pageOf(keyOf("q")).Behind(&read.Rows[i])
		if r, err := c.Stored(v); err != nil || r.Source != Memory {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if each := (liveHeap() - before) / rows; each > text*2 { // the test's cursor has one
		t.Errorf("a page of three rows takes %d bytes more", each)
	}
}

// Memory does not store an entry that is larger than its budget, and removes the older entry
// of its key.
func TestMemoryStoresNoEntryThatIsTooLarge(t *testing.T) {
	const budget = 4 << 20
	m := openMemory(t, budget)
	m.put(keyOf("old"), readNow(items(4_000)), time.Hour)
	m.put(keyOf("other"), readNow(items(4_000)), time.Hour)
	large := readNow(make([]byte, budget))
	for _, key := range []string{"old", "new"} {
		if s := m.put(keyOf(key), large, time.Hour); s.entry.Load() != large || m.get(keyOf(key)) != nil {
			t.Errorf("%s: it is kept, or one before it", key)
		}
	}
	if m.get(keyOf("other")) == nil || m.evicted.Load() != 2 {
		t.Errorf("another had to go; %d evicted", m.evicted.Load())
	}
}
