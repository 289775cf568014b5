//go:build race

package limiter

// The simulation has one goroutine: the race detector makes it slow, not better.
const (
	stormSeeds  = 30
	simSeeds    = 4
	madeUpKeys  = 100_000
	tableSeeds  = 1
	tableLimits = 3
	simSpan     = 12_000_000
	callSpan    = 20_000_000
	coldFloods  = 400
	keyLoads    = 2
)
