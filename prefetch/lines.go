//go:build amd64 || arm64

package prefetch

// lines has n times 64 bytes fetched, at least one.
//
//go:noescape
func lines(at, n uintptr)
