package main

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"

	"listedge/edge"
)

func TestTheConnectionLimitLeavesDescriptorsAndMemory(t *testing.T) {
	const unlimited = math.MaxInt64
	for _, c := range []struct {
		name                string
		wanted              int
		descriptors, memory int64
		flags               nodeFlags
		limit               int
		warns               bool
	}{
		{"nothing limits", 0, unlimited, unlimited, nodeFlags{}, edge.MostConnections, false},
		{"systemd's 65,536 files", 0, 65_536, unlimited, nodeFlags{DatabaseConnections: 16}, 49_080, false},
		{"a shell's 1,024 files", 0, 1024, unlimited, nodeFlags{DatabaseConnections: 16}, 696, false},
		{"a pool as large", 0, 1024, unlimited, nodeFlags{DatabaseConnections: 500, ReplicaURL: []string{"a", "b"}}, 1, false},
		{"a container of 1 GiB", 0, unlimited, 1 << 30, nodeFlags{CacheMemory: 256 << 20}, 4915, false},
		{"a container that the cache fills", 0, unlimited, 1 << 30, nodeFlags{CacheMemory: 2 << 30}, 256, false},
		{"set, memory or not", 20_000, 65_536, 1 << 30, nodeFlags{DatabaseConnections: 16}, 20_000, false},
		{"set, without descriptors", 20_000, 1024, unlimited, nodeFlags{DatabaseConnections: 16}, 696, true},
	} {
		var log bytes.Buffer
		c.flags.MaxConnections = c.wanted
		if got := limitConnections(c.flags, c.descriptors, c.memory, slog.New(slog.NewTextHandler(&log, nil))); got != c.limit || strings.Contains(log.String(), "--max-connections") != c.warns {
			t.Errorf("%s: %d, want %d; log: %s", c.name, got, c.limit, log.String())
		}
	}
	if descriptors, memory := descriptorLimit(), memoryLimit(); descriptors < 20 || memory < 64<<20 || memory > 1<<50 {
		t.Errorf("this machine has %d descriptors and %d bytes", descriptors, memory)
	}
}
