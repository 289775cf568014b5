//go:build !race

package limiter_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/world"
	. "listedge/limiter"
)

// A node keeps at most 370 bytes for a key that it has seen.
func TestMemoryOfAKey(t *testing.T) {
	const keys = 100_000
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, v *virtual) {
		p := policy(t, 50, 100)
		workspace := uuid.NewString()
		heap := func() uint64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		handles := make([]*Bucket, keys) // as whoever uses them keeps them
		before := heap()
		var all sync.WaitGroup
		for i := range handles {
			handles[i] = l.Bucket(KeyBucket(workspace, uuid.NewString()), p)
			all.Go(func() { take(l, handles[i], nil) })
			if i%1000 == 999 {
				all.Wait()
			}
		}
		all.Wait()
		v.mu.Lock()
		v.redis = world.NewRedis("empty", time.Now) // its memory is not the node's
		v.mu.Unlock()
		boottimetest.Pass(30 * time.Second) // what was held has aged
		each := float64(heap()-before) / keys
		t.Logf("%.0f bytes a key", each)
		if most := 270 + 1.3*float64(len(KeyBucket(workspace, workspace))); each > most { // an allocation takes up to a quarter more than its bytes
			t.Errorf("more than %.0f bytes a key", most)
		}
		runtime.KeepAlive(handles)
	})
}
