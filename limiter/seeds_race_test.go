//go:build race

package limiter

// The simulation has one goroutine: the race detector makes it slow, not better.
// `make test` runs its storms plainly as well.
const (
	stormSeeds  = 20
	simSeeds    = 3
	madeUpKeys  = 100_000
	tableSeeds  = 1
	tableLimits = 2
	hangFleets  = 1
	simSpan     = 12_000_000
	callSpan    = 20_000_000
	coldFloods  = 200
	keyLoads    = 1
	slowLimits  = 2
)
