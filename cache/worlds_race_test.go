//go:build race

package cache

// These are fewer where each step costs ten times as much.
const worldsInTests = 8
