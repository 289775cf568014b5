package node

import (
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"listedge/edge"
)

// A connection needs a file descriptor and memory. Clients may use only a part of both, so
// that connections to Postgres and Redis can always be opened, and pages have room.

const (
	// connectionMemory is the most memory that a connection needs while its client sends
	// little or reads slowly, in bytes (docs/SIZING.md).
	connectionMemory = 80 << 10
	// minConnections is allowed whatever memory there is: together 20 MiB.
	minConnections = 256
	// otherDescriptors are kept free for refused clients, listeners and the log.
	otherDescriptors = 80
)

// limitConnections returns how many connections the public listener accepts: --max-connections, as
// far as there are descriptors for them. By default it is also no more than fit into half of the
// memory that --cache-memory leaves.
func limitConnections(f Flags, descriptors, memory int64, logger *slog.Logger) int {
	// Postgres and otherDescriptors come first. Of the rest a quarter is for Redis, the admin listener and files.
	left := descriptors - int64(f.DatabaseConnections*(1+len(f.ReplicaURL))) - otherDescriptors
	limit := min(edge.MaxConnections, max(1, left/4*3))
	switch wanted := int64(f.MaxConnections); {
	case wanted > limit:
		logger.Warn("--max-connections is lowered: the process may not open more files", "from", wanted, "to", limit, "descriptors", descriptors)
	case wanted > 0:
		limit = wanted
	default:
		limit = min(limit, max(minConnections, (memory-int64(f.CacheMemory))/2/connectionMemory))
	}
	return int(limit)
}

// descriptorLimit is how many files the process may have open at once. (Go has
// raised the soft limit to the hard one.)
func descriptorLimit() int64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt64 // unknown; Accept is tried again when they run out
	}
	return int64(min(uint64(limit.Cur), math.MaxInt64))
}

// memoryLimit is the least of what the machine has, what the process's cgroup
// allows and GOMEMLIMIT, in bytes.
func memoryLimit() int64 {
	limit := uint64(debug.SetMemoryLimit(-1)) // reads it
	for _, of := range []memlimit.Provider{memlimit.FromCgroup, memlimit.FromSystem} {
		if bytes, err := of(); err == nil && bytes > 0 {
			limit = min(limit, bytes)
		}
	}
	return int64(limit)
}

// By default, Go's garbage collector runs when garbage has become as large as the live heap.
// A node with few pages would collect every 4 MB, which is every hundred misses, and a node
// full of pages would need twice its memory. Pages are most of the live heap, and marking
// them is cheap. So the collector runs at a fixed amount of garbage, whatever the live heap.

// GarbageShare is the garbage at which the collector runs, as a share of --cache-memory.
const GarbageShare = 0.06

// garbagePercent returns the value for debug.SetGCPercent, for garbage and live heap in bytes:
// the one in percent of the other. The collector takes the live heap for at least 4 MiB.
func garbagePercent(garbage, live int64) int {
	const smallest = 4 << 20
	return int(max(1, min(garbage*100/max(live, smallest), 10_000)))
}

// PaceCollector makes Go's collector run at so many bytes of garbage, until the process ends.
func PaceCollector(garbage int64) {
	debug.SetGCPercent(100)
	paceCollector(garbage, 100)
}

// paceCollector sets the collector's percentage by the live heap that the last collection left,
// and does so again at the end of the next one. percent is the present setting.
func paceCollector(garbage int64, percent int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if wanted := garbagePercent(garbage, int64(live[0].Value.Uint64())); wanted != percent {
		debug.SetGCPercent(wanted) // stops the world for a moment
		percent = wanted
	}
	runtime.AddCleanup(new(*int), func(percent int) { paceCollector(garbage, percent) }, percent)
}
