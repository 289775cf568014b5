package edge

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/list/listtest"
	"listedge/origin/apikey"
)

// flooded is a node without pages whose keys were made by another maker, in virtual time, and what it asked Postgres for.
type flooded struct {
	*Server
	takes time.Duration // a query

	mu              sync.Mutex // guards all below
	keys            map[apikey.Hash]apikey.Key
	queries, hashes int
	answers         map[string]map[int]int // statuses by addresses
}

func (f *flooded) lookup(_ context.Context, hashes []apikey.Hash, _ string) (map[apikey.Hash]apikey.Key, error) {
	f.mu.Lock()
	f.queries++
	f.hashes += len(hashes)
	found := map[apikey.Hash]apikey.Key{}
	for _, h := range hashes {
		if k, ok := f.keys[h]; ok {
			found[h] = k
		}
	}
	f.mu.Unlock()
	boottimetest.Pass(f.takes)
	return found, nil
}

// makes stores a key by the hash of what is behind a character, and returns what its client sends.
func (f *flooded) makes(n int) (text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	secret := fmt.Sprint("a secret of customer ", n)
	f.keys[sha256.Sum256([]byte(secret))] = apikey.Key{Scopes: 1 << listtest.Items.Number}
	return fmt.Sprint(n, "|", secret)
}

// sends is a request with the key from the address. It returns the status that authentication gives it; 200 = none.
func (f *flooded) sends(address, key string) (status int) {
	x := forwarded(address)
	x.server, x.headers.key = f.Server, [][]byte{[]byte(key)}
	status = 200
	if _, failure := x.authenticate(&endpoint{List: listtest.Items}); failure != nil {
		status = failure.problem.status
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answers[address] == nil {
		f.answers[address] = map[int]int{}
	}
	f.answers[address][status]++
	return status
}

// 100,000 made-up values in a second of virtual time, at a node where keys of three forms were imported: each
// may have three hashes. Postgres gets as many statements as docs/SECURITY.md says, memory keeps none of them, and no valid key
// is refused: a known one is served at once, and so is one that the node has not seen, but behind the flood's own address,
// where it may get a 503 and is served when it comes again.
func TestAFloodOfMadeUpKeys(t *testing.T) {
	const flood, newcomers = 100_000, 10
	for _, c := range []struct {
		name      string
		addresses int
		takes     time.Duration // a query
	}{
		{"from one address", 1, 2 * time.Millisecond},
		{"from one address, and Postgres is slow", 1, 150 * time.Millisecond},
		{"from 40 addresses", 40, 2 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flooded{Server: &Server{guard: newGuard()}, takes: c.takes, keys: map[apikey.Hash]apikey.Key{}, answers: map[string]map[int]int{}}
				forms := []apikey.Form{{Digest: apikey.SHA256, Behind: "|"}, {Digest: apikey.SHA256}, {Digest: apikey.SHA512}}
				f.Keys = apikey.NewCache(f.lookup, func(context.Context, string) ([]apikey.Form, string, error) { return forms, "", nil },
					func(apikey.Key, *client) {}, time.Minute, boottime.New())
				defer f.Keys.Close()
				address := func(n int) string { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n % c.addresses)}).String() }
				const elsewhere = "198.51.100.7"
				known := f.makes(0)
				f.sends(address(0), known)
				before, began := heap(), time.Now()
				var all sync.WaitGroup
				all.Go(func() {
					for n := range flood {
						all.Go(func() { f.sends(address(n), fmt.Sprint("17|made up ", n)) })
						if n%(flood/1000) == 0 {
							boottimetest.Pass(time.Millisecond)
						}
					}
				})
				boottimetest.Pass(time.Second / 4)
				waits := heap() - before
				again := 0
				for n := range newcomers {
					boottimetest.Pass(time.Duration(rand.IntN(20_000)) * time.Microsecond) // not when a query has just made room
					if status := f.sends(address(0), known); status != 200 {
						t.Errorf("%d for a known key", status)
					}
					if status := f.sends(elsewhere, f.makes(1+n)); status != 200 {
						t.Errorf("%d for a new key", status)
					}
					for key := f.makes(1000 + n); ; again++ {
						status := f.sends(address(0), key)
						if status != 200 && status != 503 {
							t.Fatalf("%d for a new key from the flood's address", status)
						}
						if status == 200 {
							break
						}
						boottimetest.Pass(10 * time.Millisecond)
					}
				}
				all.Wait()
				took := time.Since(began).Seconds()
				if most := 50 + 50*took + 2*newcomers + 2.5*took; float64(f.queries) > most || f.hashes > 1000*f.queries {
					t.Errorf("%d queries for %d hashes, at most %.0f", f.queries, f.hashes, most)
				}
				answers := map[int]int{}
				for a, statuses := range f.answers {
					if most := 200 + 20*took; float64(statuses[401]) > most+1 {
						t.Errorf("%d answers of 401 to %s, at most %.0f", statuses[401], a, most)
					}
					for status, n := range statuses {
						answers[status] += n
					}
				}
				if known := f.Keys.Stats().Known; known != 1+2*newcomers || answers[401]+answers[429]+answers[503] != flood+again {
					t.Errorf("%d keys in memory, answers %v", known, flood)
				}
				t.Logf("%.1f s: %d queries for %d hashes, answers %v; those who wait take %d kB; new keys from there came again %d times", took, f.queries,
					f.hashes, answers, waits>>10, again)
			})
		})
	}
}

// heap is how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
