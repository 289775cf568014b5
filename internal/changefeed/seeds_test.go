//go:build !race

package changefeed

const simSeeds = 1000
