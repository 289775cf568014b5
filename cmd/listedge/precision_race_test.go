//go:build race

package main

import "time"

// pagesFor is how long pages are compared on each kind of fleet. The race detector
// makes all of it slow: `make test` has the test run without it, too.
const pagesFor = time.Second
