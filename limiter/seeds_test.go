//go:build !race

package limiter

// How much of the simulation a plain run has time for.
const (
	stormSeeds = 400
	tableSeeds = 2
	simSeeds   = 40
	madeUpKeys = 1_000_000
	simSpan    = 10_000_000
)
