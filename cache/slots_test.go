package cache

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// These tests know slots: two queries with one hash, and what a slot costs.

func openMemory(t testing.TB, budget int64) *memory {
	t.Helper()
	m, err := newMemory(budget)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	return m
}

// entryAt is an entry of the search's page that was read at that time, with one row.
func entryAt(search, text string, at time.Duration) *Entry {
	row := listtest.Item(0, "sku", text)
	return entryOf(searched(search), &reading{Read: page.Read{Rows: []list.Row{row}, End: true}, readAt: at}, nil)
}

func searched(text string) *page.Query {
	return &page.Query{List: listtest.Items, Search: text, Limit: 1}
}

func (s *slot) text() string {
	_, rest, _ := strings.Cut(s.entry.Load().texts[0], `"sku":"`)
	text, _, _ := strings.Cut(rest, `"`)
	return text
}

func TestWholeQueryIsCompared(t *testing.T) {
	m := openMemory(t, 8<<20)
	q, hash := searched("page"), m.hash(searched("page"))
	// As after a collision of all bits of the hash.
	collided := &slot{query: searched("other")}
	collided.entry.Store(entryAt("other", "other", 0))
	m.ristretto.Set(hash, collided, 1000)
	m.ristretto.Wait()
	if _, there := m.ristretto.Get(hash); !there {
		t.Fatal("the collision was not brought about")
	}
	if h := m.get(q); h != nil {
		t.Fatalf("another query's page: %s", h.text())
	}
	m.put(entryAt("page", "page", 0), time.Hour)
	if h := m.get(q); h == nil || h.text() != "page" {
		t.Fatal("the page is not found in place of the collided one")
	}
	if got := collided.text(); got != "other" {
		t.Fatalf("the other query's slot got %s", got)
	}
}

func TestOlderNeverReplacesNewer(t *testing.T) {
	const writers = 16
	m := openMemory(t, 8<<20)
	for round := range 200 {
		q := searched(fmt.Sprint(round))
		proofs := rand.Perm(writers)
		begin := make(chan struct{})
		var all sync.WaitGroup
		for _, proof := range proofs {
			all.Go(func() {
				p := entryAt(q.Search, fmt.Sprint(proof), time.Duration(proof))
				<-begin
				kept := m.put(p, time.Hour).entry.Load()
				found := m.get(q)
				if kept.Proof < p.Proof || found == nil || found.entry.Load().Proof < p.Proof {
					t.Errorf("round %d: %v is followed by something older", round, proof)
				}
			})
		}
		close(begin)
		all.Wait()
		if h := m.get(q); h == nil || h.text() != fmt.Sprint(writers-1) {
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
				e := entryAt(fmt.Sprint(rand.IntN(keys)), body[:len(body)-rand.IntN(4)*len(body)/16], time.Since(began))
				if s := m.get(e.query); s != nil && rand.IntN(2) == 0 {
					m.replace(s, e, time.Hour)
				} else {
					m.put(e, time.Hour)
				}
			}
		})
	}
	all.Wait()
	counted := int64(0)
	for i := range keys {
		if s := m.get(searched(fmt.Sprint(i))); s != nil {
			counted += s.cost
			if size := s.entry.Load().size(); size > s.cost+s.cost/4 {
				t.Errorf("page %d costs %d bytes, ristretto counts %d", i, size, s.cost)
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
	m.put(entryAt("old", "small", 0), time.Hour)
	m.put(entryAt("other", "small", 0), time.Hour)
	for _, search := range []string{"old", "new"} {
		large := entryAt(search, strings.Repeat("x", budget), 1)
		if s := m.put(large, time.Hour); s.entry.Load() != large || m.get(searched(search)) != nil {
			t.Errorf("%s: it is kept, or one before it", search)
		}
	}
	if m.get(searched("other")) == nil || m.evicted.Load() != 2 {
		t.Errorf("another had to go; %d evicted", m.evicted.Load())
	}
}
