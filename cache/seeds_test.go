//go:build !race

package cache

const modelSeeds = 100
