//go:build race

package limiter

// The simulation has one goroutine: the race detector makes it slow, not better.
const (
	stormSeeds = 30
	tableSeeds = 1
	simSeeds   = 4
	madeUpKeys = 100_000
	simSpan    = 5_000_000
)
