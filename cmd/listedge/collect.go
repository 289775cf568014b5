package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// Left to itself, Go's collector lets garbage grow as large as what lives: a
// node with few pages collects every 4 MB, that is every hundred misses, and one
// whose memory is full of pages doubles it. What lives here is mostly pages,
// which cost nothing to mark. So the garbage between two collections is kept
// at one size, whatever lives.

// garbageShare is that size, of the budget for pages.
const garbageShare = 0.06

// garbagePercent is what debug.SetGCPercent is given for it: the heap's growth
// in percent of what lives, in bytes. The collector counts less than its
// smallest heap as that.
func garbagePercent(garbage, live int64) int {
	const smallest = 4 << 20
	return int(max(1, min(garbage*100/max(live, smallest), 10_000)))
}

// paceCollector keeps the garbage at that size until it is stopped, which gives
// the collector back its pace. GOGC, where it is set, is obeyed instead.
func paceCollector(garbage int64) (stop func()) {
	if os.Getenv("GOGC") != "" {
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
		// The next collection finds this, and calls.
		runtime.AddCleanup(new(*int), func(int) { pace() }, 0)
	}
	pace()
	return func() {
		stopped.Store(true)
		debug.SetGCPercent(before)
	}
}
