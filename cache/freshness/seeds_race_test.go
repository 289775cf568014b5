//go:build race

package freshness

// modelSeeds is small where each step costs ten times as much.
// `make test` runs the model plainly as well.
const modelSeeds = 3

const lemmaWhole, lemmaShare = 0, 503
