package cache

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"listedge/internal/lists"
	"listedge/internal/page"
)

// These tests know slots: two keys with one hash, and what a slot costs.

func openMemory(t testing.TB, budget int64) *memory {
	t.Helper()
	m, err := newMemory(budget)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	return m
}

// bare is a view of one row, with nothing around it.
type bare struct{ View }

func (bare) Limit() int                                      { return 1 }
func (bare) Frame(*lists.Row, bool) (head, end, next string) { return "", "", "" }

// entryAt is an entry that was read at that time.
func entryAt(body string, at time.Duration) *Entry {
	row := *new(lists.Row).SetTexts("", body)
	return entryOf(bare{}, &reading{Read: page.Read{Rows: []lists.Row{row}, End: true}, readAt: at}, nil)
}

func (s *slot) text() string { return s.entry.Load().texts[0] }

func TestWholeKeyIsCompared(t *testing.T) {
	m := openMemory(t, 8<<20)
	key, other := []byte("key"), []byte("other")
	// As after a collision of all 128 bits of the hash.
	collided := &slot{key: other}
	collided.entry.Store(entryAt("other", 0))
	m.ristretto.Set(key, collided, 1000)
	m.ristretto.Wait()
	if _, there := m.ristretto.Get(key); !there {
		t.Fatal("the collision was not brought about")
	}
	if h := m.get(key); h != nil {
		t.Fatalf("another key's page: %s", h.text())
	}
	m.put(key, entryAt("page", 0), time.Hour)
	if h := m.get(key); h == nil || h.text() != "page" {
		t.Fatal("the page is not found in place of the collided one")
	}
	if got := collided.text(); got != "other" {
		t.Fatalf("the other key's slot got %s", got)
	}
}

func TestOlderNeverReplacesNewer(t *testing.T) {
	const writers = 16
	m := openMemory(t, 8<<20)
	for round := range 200 {
		key := []byte(fmt.Sprint(round))
		proofs := rand.Perm(writers)
		begin := make(chan struct{})
		var all sync.WaitGroup
		for _, proof := range proofs {
			all.Go(func() {
				p := entryAt(fmt.Sprint(proof), time.Duration(proof))
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
		if h := m.get(key); h == nil || h.text() != fmt.Sprint(writers-1) {
			t.Fatalf("round %d: not the newest page was kept", round)
		}
	}
}

// The cost that ristretto counts for an entry is what memory says that it takes, also while
// entries are replaced by smaller and larger ones, and evicted.
func TestEntriesCostWhatIsCounted(t *testing.T) {
	const keys, putters, puts = 200, 8, 1_000
	m, began := openMemory(t, 2<<20), time.Now()
	body := strings.Repeat("x", 18_000)
	var all sync.WaitGroup
	for range putters {
		all.Go(func() {
			for range puts {
				e := entryAt(body[:len(body)-rand.IntN(4)*len(body)/16], time.Since(began))
				key := []byte(fmt.Sprint(rand.IntN(keys)))
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
		if s := m.get([]byte(fmt.Sprint(i))); s != nil {
			if counted += s.cost; s.size() > s.cost+s.cost/4 {
				t.Errorf("page %d costs %d bytes, ristretto counts %d", i, s.size(), s.cost)
			}
		}
	}
	if used := m.used(); counted == 0 || used < counted || used > m.ristretto.MaxCost() {
		t.Errorf("%d bytes are used, of which ristretto counts %d", used, counted)
	}
}

// Memory does not store an entry that is larger than its budget, and removes the older entry
// of its key.
func TestMemoryStoresNoEntryThatIsTooLarge(t *testing.T) {
	const budget = 4 << 20
	m := openMemory(t, budget)
	m.put([]byte("old"), entryAt("small", 0), time.Hour)
	m.put([]byte("other"), entryAt("small", 0), time.Hour)
	large := entryAt(strings.Repeat("x", budget), 1)
	for _, key := range []string{"old", "new"} {
		if s := m.put([]byte(key), large, time.Hour); s.entry.Load() != large || m.get([]byte(key)) != nil {
			t.Errorf("%s: it is kept, or one before it", key)
		}
	}
	if m.get([]byte("other")) == nil || m.evicted.Load() != 2 {
		t.Errorf("another had to go; %d evicted", m.evicted.Load())
	}
}
