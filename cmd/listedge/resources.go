package main

import (
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"listedge/edge"
)

// A connection takes a descriptor and memory. Clients get only a part of both: when
// they have used all of it, connections to Postgres and Redis can still be opened,
// and pages still have room.

const (
	// connectionMemory is the most that a connection takes while its client sends
	// little or reads slowly, in bytes (docs/SIZING.md).
	connectionMemory = 80 << 10
	// fewestConnections is the least that memory allows: 20 MiB.
	fewestConnections = 256
	// otherDescriptors are those of refused clients, listeners and the log.
	otherDescriptors = 80
)

// limitConnections returns how many connections the public listener accepts:
// --max-connections, as far as there are descriptors for them. The default is
// what descriptors and memory allow.
func limitConnections(f nodeFlags, descriptors, memory int64, logger *slog.Logger) int {
	limit := min(edge.MostConnections, byDescriptors(f, descriptors))
	if wanted := int64(f.MaxConnections); wanted > limit {
		logger.Warn("--max-connections is lowered: the process may not open more files", "from", wanted, "to", limit, "descriptors", descriptors)
	} else if wanted > 0 {
		limit = wanted
	} else {
		limit = min(limit, byMemory(f, memory))
	}
	return int(limit)
}

// byDescriptors is three quarters of the descriptors that Postgres' connections and
// otherDescriptors leave. The last quarter is for Redis, the admin listener and files.
func byDescriptors(f nodeFlags, descriptors int64) int64 {
	postgres := int64(f.DatabaseConnections * (1 + len(f.ReplicaURL)))
	return max(1, (descriptors-postgres-otherDescriptors)/4*3)
}

// byMemory is as many connections as fit into half of what --cache-memory leaves.
func byMemory(f nodeFlags, memory int64) int64 {
	return max(fewestConnections, (memory-int64(f.CacheMemory))/2/connectionMemory)
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

// By default, Go's collector lets garbage grow as large as the live heap: a node with
// few pages collects every 4 MB, that is every hundred misses, and a node full of
// pages doubles its memory. Pages are most of the live heap and cost nothing to
// mark. So garbage is kept at one size, whatever the live heap.

// garbageShare is that size, as a share of --cache-memory.
const garbageShare = 0.06

// garbagePercent is the value for debug.SetGCPercent: growth in percent of the live
// heap, which the collector takes as its smallest heap at least.
func garbagePercent(garbage, live int64) int {
	const smallest = 4 << 20
	return int(max(1, min(garbage*100/max(live, smallest), 10_000)))
}

// paceCollector keeps garbage at that size until stop, which restores the percentage
// of before. GOGC overrides it.
func paceCollector(garbage int64) (stop func()) {
	if collectorPaceIsSet() {
		return func() {}
	}
	var stopped atomic.Bool
	percent := debug.SetGCPercent(100)
	before := percent
	var pace func()
	pace = func() { // one at a time
		if stopped.Load() {
			return
		}
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		if wanted := garbagePercent(garbage, int64(live[0].Value.Uint64())); wanted != percent {
			debug.SetGCPercent(wanted) // stops the world for a moment
			percent = wanted
		}
		// The next collection runs this cleanup.
		runtime.AddCleanup(new(*int), func(int) { pace() }, 0)
	}
	pace()
	return func() {
		stopped.Store(true)
		debug.SetGCPercent(before)
	}
}
