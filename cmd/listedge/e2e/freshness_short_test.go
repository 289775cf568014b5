//go:build mutations

package e2e

import "testing"

// TestFreshnessInShort plays the faults that distinguish a wrong rule from a right one
// soonest: mutations_test.go runs it.
func TestFreshnessInShort(t *testing.T) {
	f := startFleet(t, 2)
	o := newOracle(t, f)
	o.playAll(t, []fault{noFault, redisFrozen,
		commitsWait, commitsWait, commitsWait, commitsWait}) // what is shown too early is soon overwritten, mostly
	o.standbyWasTried(t)
}
