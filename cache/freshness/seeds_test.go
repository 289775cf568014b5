//go:build !race

package freshness

const (
	modelSeeds = 100
	joinSeeds  = 100
)
