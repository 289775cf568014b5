//go:build !race

package freshness

const (
	modelSeeds = 100
	joinSeeds  = 100
)

// Of lists of up to lemmaWhole rows all pairs of changes are tried, and of larger ones
// one of lemmaShare; one of lemmaPages pages. They are primes, so that each change meets
// many others.
const lemmaWhole, lemmaShare, lemmaPages = 3, 7, 1
