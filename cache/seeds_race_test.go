//go:build race

package cache

// modelSeeds is small where each step costs ten times as much.
const modelSeeds = 8
