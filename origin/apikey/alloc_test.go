//go:build !race

package apikey

import (
	"testing"
	"time"

	"listedge/internal/boottime"
)

// The race detector allocates on its own account, hence the build tag.
func TestAKnownKeyAllocatesNothing(t *testing.T) {
	c := NewCache(newKeyTable(1).lookup, func(Key, *int) {}, time.Minute, boottime.New())
	defer c.Close()
	text, known := textNumber(0), true
	authenticate := func() {
		_, err := c.Authenticate(text, func() bool { return !known })
		known = known && err == nil
	}
	authenticate()
	if n := testing.AllocsPerRun(1000, authenticate); n != 0 || !known {
		t.Errorf("%v allocations, known: %v", n, known)
	}
}
