package apikey

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

// BenchmarkAuthenticate is a hit, where so many keys send requests in turn.
func BenchmarkAuthenticate(b *testing.B) {
	for _, keys := range []int{1, 100_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			c := NewCache(newKeyTable(keys).lookup, func(Key, *[4]uint64) {}, time.Hour, boottime.New())
			defer c.Close()
			c.ValidThrough(changefeed.Proof{Moment: time.Now().Add(time.Hour)})
			time.Sleep(time.Millisecond)
			var texts [][]byte
			var hashes []Hash
			for n := range keys {
				texts, hashes = append(texts, textNumber(n)), append(hashes, hashNumber(n))
			}
			if err := c.update(hashes); err != nil {
				b.Fatal(err)
			}
			rand.Shuffle(keys, func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
			n := 0
			for b.Loop() {
				if _, err := c.Authenticate(b.Context(), texts[n], func() bool { return true }); err != nil {
					b.Fatal(err)
				}
				if n++; n == keys {
					n = 0
				}
			}
			if s := c.Stats(); s.Loaded > 0 {
				b.Errorf("%+v", s)
			}
		})
	}
}
