//go:build !race

package cache

// worldsInTests are the seeds of the fixed set.
const worldsInTests = 120
