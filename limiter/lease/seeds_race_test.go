//go:build race

package lease_test

// The simulation has one goroutine: the race detector makes it slow, not better.
// `make test` runs its storms plainly as well.
const (
	stormSeeds  = 20
	simSeeds    = 3
	tableSeeds  = 1
	tableLimits = 2
	simSpan     = 12_000_000
	callSpan    = 20_000_000
	slowLimits  = 2
)
