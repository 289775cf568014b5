package cache

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"listedge/internal/changefeed"
)

// A page is compressed for those who want it so, and once.
func TestAPageIsCompressedForWhoWantsIt(t *testing.T) {
	_, client := startRedis(t)
	body := string(rows(4000))
	plain, wanted := brings(body), brings(body)
	wanted.Compress = true
	for name, c := range map[string]struct {
		fill Fill
		want bool
	}{"nobody": {plain, false}, "the first": {wanted, true}} {
		options := Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}
		first, second := open(t, options), open(t, options)
		key := keyOf(name)
		forward(t, first, key, c.fill)
		stored(t, first)
		elsewhere := forward(t, second, key, fails(errOrigin))
		if _, is := elsewhere.Entry.compressed(); elsewhere.Source != Redis || is != c.want {
			t.Errorf("wanted by %s: from %v, compressed: %v", name, elsewhere.Source, is)
		}
		if !bytes.Equal(elsewhere.Entry.Deflate(), deflate([]byte(body))) {
			t.Errorf("wanted by %s: other blocks", name)
		}
	}
}

// Who wanted a page compressed wants its successor so.
func TestACompressedPagesSuccessorIsCompressed(t *testing.T) {
	virtual(t, func(t *testing.T, c *Cache) {
		for round, compressed := range []bool{false, true, true} {
			r, err := c.Forward(keyOf("q"), changefeed.List{}, brings(string(rows(4000+round))))
			if err != nil || r.Source != Origin {
				t.Fatalf("%v, %v", r.Source, err)
			}
			if _, is := r.Entry.compressed(); is != compressed {
				t.Errorf("round %d: compressed: %v", round, is)
			}
			r.Entry.Deflate()
			time.Sleep(ttl) // it is stale
		}
	})
}

// All who ask at once get the same blocks.
func TestAPageIsCompressedOnce(t *testing.T) {
	p := newEntryAt(rows(20_000), "", time.Now())
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
