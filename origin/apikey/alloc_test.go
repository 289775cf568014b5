//go:build !race

package apikey_test

import (
	"testing"
	"time"

	"listedge/internal/boottime"
	"listedge/origin/apikey"
)

// The race detector allocates on its own account, hence the build tag.
func TestAKnownKeyAllocatesNothing(t *testing.T) {
	c := apikey.NewCache(newKeyTable(1).lookup, nil, func(apikey.Key, *int) {}, time.Minute, boottime.New())
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
