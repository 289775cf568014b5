package cache

import "time"

// The serving rule, as a pure function of a page's age.
//
// Invariant: nothing older than ttl is called fresh, and nothing older than
// ttl + maxStale is served at all.

type freshness uint8

const (
	fresh   freshness = iota // serve
	stale                    // ask the origin; serve only if it fails, and say so
	expired                  // never serve
)

func judge(age, ttl, maxStale time.Duration) freshness {
	switch {
	case age < ttl:
		return fresh
	case age < ttl+maxStale:
		return stale
	}
	return expired
}
