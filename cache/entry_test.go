package cache_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"listedge/cache"
)

// items is a body like that of a page of items.
func items(n int) []byte {
	random := rand.New(rand.NewPCG(5, uint64(n)))
	b := []byte(`{"data":[`)
	for len(b) < n {
		b = fmt.Appendf(b, `{"id":"%08x-aaaa-4bbb-8ccc-%012x","name":"Article %d","type":"GOODS","costPrice":"%d.50",`+
			`"taxable":true,"createdAt":"2026-01-02T03:04:05.678Z"},`,
			random.Uint32(), random.Uint64()>>16, random.IntN(1000), random.IntN(1000))
	}
	return b[:n]
}

// noise is a body that cannot be compressed.
func noise(n int) []byte {
	b := make([]byte, n)
	random := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = random.Read(b)
	return b
}

// Concurrent requests get the same blocks.
func TestAnEntryIsCompressedOnce(t *testing.T) {
	p := forward(t, open(t, cache.Options{TTL: time.Hour}), queryOf("q"), brings(string(items(20_000)))).Entry
	var got [8][]byte
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i] = p.Deflate() })
	}
	all.Wait()
	for _, d := range got {
		if len(d) == 0 || &d[0] != &got[0][0] {
			t.Fatal("compressed more than once, or not at all")
		}
	}
}
