//go:build race

package changefeed

// simSeeds is small where each step costs ten times as much. `make test` runs
// the simulation plainly as well.
const simSeeds = 20
