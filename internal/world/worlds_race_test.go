//go:build race

package world_test

// These are fewer where each step costs ten times as much.
const worldsInTests = 8
