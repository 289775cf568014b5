//go:build !race

package freshness

const (
	modelSeeds = 100
	joinSeeds  = 100
)

// Of lists of up to lemmaWhole rows all pairs of changes are tried, and of larger ones
// one of lemmaShare. It is a prime, so that every change meets many others.
const lemmaWhole, lemmaShare = 3, 7
