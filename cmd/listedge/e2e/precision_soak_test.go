//go:build soak

package e2e

import "testing"

// TestSoakPages compares for -soak on each kind of fleet.
func TestSoakPages(t *testing.T) { comparePages(t, *soakSeed, *soakFor) }
