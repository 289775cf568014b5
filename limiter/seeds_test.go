//go:build !soak

package limiter

const stormSeeds = 300
