//go:build !race

package world_test

// worldsInTests are the seeds of the fixed set.
const worldsInTests = 120
