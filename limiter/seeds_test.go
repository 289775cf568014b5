//go:build !race

package limiter

// How much of the simulation a plain run has time for.
const (
	stormSeeds  = 400
	simSeeds    = 40
	madeUpKeys  = 1_000_000
	tableSeeds  = 2
	tableLimits = 5 // of simLimits
	hangFleets  = 3
	simSpan     = 12_000_000
	callSpan    = 60_000_000
	coldFloods  = 4000
	keyLoads    = 4
	slowLimits  = 5
)
