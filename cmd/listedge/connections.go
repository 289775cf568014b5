package main

import (
	"log/slog"
	"math"
	"runtime/debug"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"listedge/edge"
)

// A connection takes a descriptor and memory. Both are shared with what answers
// requests, so clients get a part of them: when they hold all of it, Postgres,
// Redis and files can still be opened, and pages still have room.

const (
	// connectionMemory is what a connection takes at most while its client sends
	// little or reads slowly, in bytes (docs/SIZING.md).
	connectionMemory = 80 << 10
	// fewestConnections is the least that memory allows: 20 MiB.
	fewestConnections = 256
	// otherDescriptors are those of refused clients, listeners and the log.
	otherDescriptors = 80
)

// limitConnections returns how many connections the public listener takes:
// --max-connections, as far as there are descriptors for them. By default it
// is what descriptors and memory allow.
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

// byDescriptors is three quarters of those that remain beside Postgres's
// connections and otherDescriptors. The rest is for Redis, the admin listener and
// files.
func byDescriptors(f nodeFlags, descriptors int64) int64 {
	postgres := int64(f.DatabaseConnections * (1 + len(f.ReplicaURL)))
	return max(1, (descriptors-postgres-otherDescriptors)/4*3)
}

// byMemory is as many as fit into half of what --cache-memory leaves.
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
