package e2e

import (
	"fmt"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

// TestEveryCachedPageEqualsOneReadAnew runs the page oracle for a few seconds on each kind of
// fleet. `make soak` runs it for longer.
func TestEveryCachedPageEqualsOneReadAnew(t *testing.T) {
	t.Parallel()
	comparePages(t, uint64(time.Now().UnixNano()), pagesFor)
}

// comparePages runs the page oracle for this long on each kind of fleet, one after the other.
func comparePages(t *testing.T, seed uint64, d time.Duration) {
	t.Logf("seed %d", seed)
	t.Run("memory", func(t *testing.T) {
		o := newPageOracle(t, seed, database(t))
		o.start(t)
		o.run(t, d)
	})
	t.Run("Redis", func(t *testing.T) {
		o := newPageOracle(t, seed+1, database(t))
		redis := sandboxtest.Redis(t).URL()
		o.start(t, "--redis-url", redis)
		o.start(t, "--redis-url", redis)
		o.run(t, d)
	})
	t.Run("a standby", func(t *testing.T) {
		primary, url := privateDatabase(t)
		standby := sandboxtest.Standby(t, primary, map[string]string{"recovery_min_apply_delay": fmt.Sprintf("%dms", standbyDelay.Milliseconds())})
		o := newPageOracle(t, seed+2, url)
		redis := sandboxtest.Redis(t).URL()
		for range 2 {
			o.start(t, "--redis-url", redis, "--replica-url", standby.URL("listedge"))
		}
		o.run(t, d)
	})
}

// standbyDelay is how far the standby is behind: less than the writers' pauses.
const standbyDelay = 20 * time.Millisecond
