//go:build race

package freshness

// These are small where each step costs ten times as much.
// `make test` runs the models plainly as well.
const (
	modelSeeds = 3
	joinSeeds  = 10
)

const lemmaWhole, lemmaShare, lemmaPages = 0, 101, 7
