//go:build race

package replica_test

// These are small where each step costs ten times as much.
const modelSeeds, interleavingShare = 8, 997
