//go:build !race

package replica_test

// One of interleavingShare interleavings is run. It is a prime.
const modelSeeds, interleavingShare = 4000, 23
