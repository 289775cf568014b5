//go:build !race

package replica_test

// The seeds are for each list. One of interleavingShare interleavings is run. It is a prime.
const modelSeeds, interleavingShare = 4000, 23
