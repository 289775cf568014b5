//go:build !race

package freshness

const modelSeeds = 100
