//go:build mutations

package main

import "testing"

// TestFreshnessInShort is the faults that tell a wrong rule from a right one
// soonest: mutations_test.go runs it.
func TestFreshnessInShort(t *testing.T) {
	f := startFleet(t, 2)
	o := newOracle(t, f)
	for _, x := range faults {
		switch x.name {
		case "none", "Redis frozen":
			o.play(t, x)
		case "commits wait for a standby": // what is shown too early is soon overwritten, mostly
			for range 4 {
				o.play(t, x)
			}
		}
	}
	o.standbyWasTried(t)
}
