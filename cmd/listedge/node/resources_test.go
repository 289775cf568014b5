package node

import (
	"bytes"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"listedge/edge"
)

func TestTheConnectionLimitLeavesDescriptorsAndMemory(t *testing.T) {
	const unlimited = math.MaxInt64
	for _, c := range []struct {
		name                string
		wanted              int
		descriptors, memory int64
		flags               Flags
		limit               int
		warns               bool
	}{
		{"nothing limits", 0, unlimited, unlimited, Flags{}, edge.MaxConnections, false},
		{"systemd's 65,536 files", 0, 65_536, unlimited, Flags{ServerFlags: ServerFlags{DatabaseConnections: 16}}, 49_080, false},
		{"a shell's 1,024 files", 0, 1024, unlimited, Flags{ServerFlags: ServerFlags{DatabaseConnections: 16}}, 696, false},
		{"a pool as large", 0, 1024, unlimited, Flags{ServerFlags: ServerFlags{DatabaseConnections: 500, ReplicaURL: []string{"a", "b"}}}, 1, false},
		{"a container of 1 GiB", 0, unlimited, 1 << 30, Flags{CacheMemory: 256 << 20}, 4915, false},
		{"a container that the cache fills", 0, unlimited, 1 << 30, Flags{CacheMemory: 2 << 30}, 256, false},
		{"set, memory or not", 20_000, 65_536, 1 << 30, Flags{ServerFlags: ServerFlags{DatabaseConnections: 16}}, 20_000, false},
		{"set, without descriptors", 20_000, 1024, unlimited, Flags{ServerFlags: ServerFlags{DatabaseConnections: 16}}, 696, true},
	} {
		var log bytes.Buffer
		c.flags.MaxConnections = c.wanted
		if got := limitConnections(c.flags, c.descriptors, c.memory, slog.New(slog.NewTextHandler(&log, nil))); got != c.limit ||
			strings.Contains(log.String(), "--max-connections") != c.warns {
			t.Errorf("%s: %d, want %d; log: %s", c.name, got, c.limit, log.String())
		}
	}
	if descriptors, memory := descriptorLimit(), memoryLimit(); descriptors < 20 || memory < 64<<20 || memory > 1<<50 {
		t.Errorf("this machine has %d descriptors and %d bytes", descriptors, memory)
	}
}

func TestGarbageIsOfOneSize(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		garbage, live int64
		percent       int
	}{
		{25 * mb, 0, 625}, {25 * mb, 1 * mb, 625}, {25 * mb, 50 * mb, 50}, {25 * mb, 250 * mb, 10}, {25 * mb, 25_000 * mb, 1},
		{100, 100 * mb, 1}, {1 << 40, 4 * mb, 10_000},
	} {
		if got := garbagePercent(c.garbage, c.live); got != c.percent {
			t.Errorf("%d MB of garbage with %d MB alive: %d %%, want %d", c.garbage/mb, c.live/mb, got, c.percent)
		}
	}
}

// escaping makes its argument escape to the heap.
var escaping atomic.Pointer[[64 << 10]byte]

// The test makes much garbage, with a small live heap and with a large one.
func TestTheCollectorKeepsThePace(t *testing.T) {
	const garbage, made = 16 << 20, 512 << 20
	PaceCollector(garbage)
	collections := func(live int) uint32 {
		kept := make([]byte, live)
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		n := s.NumGC
		for range made / (64 << 10) {
			escaping.Store(&[64 << 10]byte{})
			runtime.Gosched()
		}
		runtime.ReadMemStats(&s)
		runtime.KeepAlive(kept)
		return s.NumGC - n
	}
	// Without the pace, it would run each 4 MB, and each 256 MB. It may begin early, and be late on a
	// busy machine while little lives, because each collection then sets the pace of the next.
	if n := collections(1 << 10); n > made/garbage*3 {
		t.Errorf("with nothing alive %d collections", n)
	}
	if n := collections(256 << 20); n < made/garbage/8 || n > made/garbage*3 {
		t.Errorf("with 256 MB alive %d collections", n)
	}
}
