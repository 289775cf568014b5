//go:build soak

package main

import "testing"

// TestSoakPages compares for -soak on each kind of fleet.
func TestSoakPages(t *testing.T) { comparePages(t, *soakSeed, *soakFor) }
