// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

// How much of the simulation a plain run has time for.
const (
	stormSeeds  = 150
	simSeeds    = 12
	tableSeeds  = 1
	tableLimits = 4 // of simLimits
	simSpan     = 12_000_000
	callSpan    = 60_000_000
	slowLimits  = 5
)
