//go:build !race

package limiter

// How much of the simulation a plain run has time for.
const (
	stormSeeds = 300
	simSeeds   = 40
	madeUpKeys = 1_000_000
	simSpan    = 20_000_000
)
