//go:build amd64 || arm64

package prefetch

// lines has every 64 bytes fetched, beginning with from, that lie before to.
//
//go:noescape
func lines(from, to uintptr)
