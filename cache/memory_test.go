package cache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache/freshness"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
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

// bodyOnly is an entry that was read now, without the fields that take time to compute.
func bodyOnly(body []byte) *Entry {
	e := &Entry{Body: body}
	e.Proof = time.Since(testsBegan)
	e.ReadAt = e.Proof
	return e
}

func TestWholeKeyIsCompared(t *testing.T) {
	m := openMemory(t, 8<<20)
	key, other := keyOf("key"), keyOf("other")
	// As after a collision of all 128 bits of the hash.
	collided := &slot{key: other}
	collided.entry.Store(newEntryAt([]byte("other"), "", time.Now()))
	m.ristretto.Set(key, collided, 1000)
	m.ristretto.Wait()
	if _, there := m.ristretto.Get(key); !there {
		t.Fatal("the collision was not brought about")
	}
	if h := m.get(key); h != nil {
		t.Fatalf("another key's page: %s", h.entry.Load().Body)
	}
	m.put(key, newEntryAt([]byte("page"), "", time.Now()), time.Hour)
	if h := m.get(key); h == nil || string(h.entry.Load().Body) != "page" {
		t.Fatal("the page is not found in place of the collided one")
	}
	if got := string(collided.entry.Load().Body); got != "other" {
		t.Fatalf("the other key's slot got %s", got)
	}
}

func TestOlderNeverReplacesNewer(t *testing.T) {
	const writers = 16
	m := openMemory(t, 8<<20)
	start := time.Now()
	for round := range 200 {
		key := keyOf(fmt.Sprint(round))
		proofs := rand.Perm(writers)
		begin := make(chan struct{})
		var all sync.WaitGroup
		for _, proof := range proofs {
			all.Go(func() {
				p := newEntryAt(nil, fmt.Sprint(proof), start.Add(time.Duration(proof)))
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
		if h := m.get(key); h == nil || h.entry.Load().Next != fmt.Sprint(writers-1) {
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
			m.put(keyOf(fmt.Sprint(i)), newEntryAt(rows(1000), "", time.Now()), life(i))
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

// An entry lives as long as its own TTL says, not as long as that of the entry it replaces.
func TestAnEntryThatReplacesAnotherLivesAsLongAsItMay(t *testing.T) {
	lives := []time.Duration{time.Second, 70 * time.Second, 78 * time.Second, 79 * time.Second, 80 * time.Second, 88 * time.Second, 91 * time.Second, time.Hour}
	for _, life := range lives {
		synctest.Test(t, func(t *testing.T) {
			m := openMemory(t, 8<<20)
			m.put(keyOf("q"), newEntryAt([]byte("body"), "", time.Now()), 80*time.Second)
			m.put(keyOf("q"), newEntryAt([]byte("body"), "", time.Now().Add(1)), life)
			boottimetest.Pass(life - time.Millisecond)
			if m.get(keyOf("q")) == nil {
				t.Errorf("expired before its TTL of %v", life)
			}
			boottimetest.Pass(2 * time.Millisecond)
			if m.get(keyOf("q")) != nil {
				t.Errorf("to live %v, it is there afterwards", life)
			}
		})
	}
}

// The cost that memory counts for an entry is at least what the entry takes on the heap,
// and not much more: also while entries are replaced by smaller and larger ones, and evicted.
func TestEntriesCostNoMoreThanIsCounted(t *testing.T) {
	const keys, putters, puts = 200, 8, 3_000
	m := openMemory(t, 2<<20)
	body := rows(18_000)
	var all sync.WaitGroup
	for range putters {
		all.Go(func() {
			for range puts {
				p := bodyOnly(body[:len(body)-rand.IntN(4)*len(body)/16])
				m.put(keyOf(fmt.Sprint(rand.IntN(keys))), p, time.Hour)
			}
		})
	}
	all.Wait()
	found, counted := int64(0), int64(0)
	for i := range keys {
		h := m.inRistretto(keyOf(fmt.Sprint(i)))
		if h == nil {
			continue
		}
		if found += h.size(); h.cost != h.size() {
			t.Errorf("page %d costs %d bytes, ristretto counts %d", i, h.size(), h.cost)
		}
		counted += h.cost
	}
	if used := m.ristretto.MaxCost() - m.ristretto.RemainingCost(); used < counted {
		t.Errorf("%d bytes are used, of which ristretto counts %d", counted, used)
	}
	inWindow := func() (keys [][]byte, size int64) {
		for e := m.window.order.Front(); e != nil; e = e.Next() {
			h := e.Value.(*windowed).slot
			keys, size = append(keys, h.key), size+h.size()
		}
		return keys, size
	}
	lying, _ := inWindow()
	if len(lying) == 0 || found == 0 {
		t.Fatalf("%d pages in the window, %d bytes in ristretto: the test needs both", len(lying), found)
	}
	for _, key := range lying {
		m.put(key, bodyOnly(body[:len(body)-len(body)/32]), time.Hour)
	}
	if _, size := inWindow(); size != m.window.used() {
		t.Errorf("pages of the window take %d bytes, of which it counts %d", size, m.window.used())
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
	q := &Entry{Body: bytes.Clone(p.Body), ETag: p.ETag, Next: strings.Clone(p.Next), CRC: p.CRC}
	q.deflated.Store(&deflate)
	return q
}

func TestMemoryBudget(t *testing.T) {
	const budget = 8 << 20
	next := string(noise(120))
	tiny := newEntryAt([]byte(`{"data":[],"page":{"hasMore":false,"nextCursor":null}`), "", time.Now())
	short, usual, long := newEntryAt(rows(1500), next, time.Now()), newEntryAt(rows(18_000), next, time.Now()), newEntryAt(rows(36_000), next, time.Now())
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
		{"short pages that say what they show", 10_000, 10_000, func(int) *Entry {
			p := copied(short)
			p.Extent = &freshness.Extent{End: freshness.Bound{Kind: freshness.At, NameKey: string(noise(80))}, Tags: make([]uint32, 101)}
			return p
		}},
		{"all sizes", 5_000, 5_000, func(i int) *Entry { return copied([]*Entry{tiny, short, usual, long}[i%4]) }},
		{"from Redis", 4_000, 4_000, func(i int) *Entry {
			entry := bytes.Clone([]*Entry{tiny, short, usual}[i%3].encode(key(i), time.Hour, time.Now())) // to its length, as read
			p, _, err := decode(entry, key(i), time.Hour, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return p
		}},
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

// Memory does not store an entry that would take the room of many, and removes the older
// entry of its key.
func TestMemoryStoresNoEntryThatIsTooLarge(t *testing.T) {
	m := openMemory(t, 16<<20)
	now := time.Now()
	for i := range 100 {
		m.put(keyOf(fmt.Sprint(i)), newEntryAt(rows(4_000), "", now), time.Hour)
	}
	used := m.used()
	large := newEntryAt(make([]byte, 1<<20), "", now.Add(1))
	for _, key := range []string{"1", "new"} {
		if h := m.put(keyOf(key), large, time.Hour); h.entry.Load() != large {
			t.Errorf("%s: another page is shared", key)
		}
		if m.get(keyOf(key)) != nil {
			t.Errorf("%s: it is kept, or one before it", key)
		}
	}
	if now := m.used(); now > used || m.evicted.Load() != 2 {
		t.Errorf("%d bytes, before %d; %d evicted", now, used, m.evicted.Load())
	}
	if p := newEntryAt([]byte("small"), "", now.Add(2)); m.put(keyOf("1"), p, time.Hour).entry.Load() != p || m.get(keyOf("1")) == nil {
		t.Error("a smaller one in its place is not kept")
	}
	if m.put(keyOf("1"), large, time.Hour); m.get(keyOf("1")) == nil {
		t.Error("a newer one had to go for it")
	}
}

func TestRedisStoresNoEntryThatIsTooLarge(t *testing.T) {
	_, client := startRedis(t)
	c := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	for body, there := range map[int]int64{maxRedisEntry / 4: 1, maxRedisEntry: 0} {
		key := keyOf(fmt.Sprint(body))
		if _, err := c.Forward(key, changefeed.List{}, brings(string(make([]byte, body)))); err != nil {
			t.Fatal(err)
		}
		stored(t, c)
		if n := client.Exists(t.Context(), inRedis(key)).Val(); n != there {
			t.Errorf("%d bytes: %d entries", body, n)
		}
	}
	if s := c.Stats(); s.RedisFailures != 0 || s.RedisDropped != 1 {
		t.Errorf("%+v", s)
	}
}

// A node does not read a value of Redis that is too long, whoever wrote it.
func TestAValueThatIsTooLongIsNotRead(t *testing.T) {
	_, client := startRedis(t)
	c := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	c.redis.budget = patient
	key := keyOf("q")
	const size = 64 << 20
	if err := client.SetRange(t.Context(), inRedis(key), size-1, "x").Err(); err != nil {
		t.Fatal(err)
	}
	before := sent(t, client)
	for name, read := range map[string]func() (*Entry, error){
		"a page":            func() (*Entry, error) { return c.redis.get(key) },
		"a page of its age": func() (*Entry, error) { return c.redis.getAged(key) },
	} {
		if p, err := read(); p != nil || err != nil {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	if n := sent(t, client) - before; n > size/4 {
		t.Errorf("%d bytes were sent", n)
	}
	if s := c.Stats(); s.RedisCorrupt != 2 || s.RedisFailures != 0 {
		t.Errorf("%+v", s)
	}
	r, err := c.Forward(key, changefeed.List{}, brings("page"))
	want{body: "page", source: Origin}.check(t, r, err)
	stored(t, c)
	if p, _ := c.redis.get(key); p == nil || !bytes.Equal(p.Body, []byte("page")) {
		t.Error("the page did not take its place")
	}
}

// sent returns how many bytes the server has sent so far.
func sent(t *testing.T, client *redis.Client) int {
	t.Helper()
	info := client.Info(t.Context(), "stats").Val()
	n, err := strconv.Atoi(regexp.MustCompile(`total_net_output_bytes:(\d+)`).FindStringSubmatch(info)[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
