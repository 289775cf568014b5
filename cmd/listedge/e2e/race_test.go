//go:build race

package e2e

import "time"

// raceDetector are the flags with which the program is compiled.
var raceDetector = []string{"-race"}

// pagesFor is how long pages are compared on each kind of fleet. The race detector
// makes all of it slow, and `make test` runs the test without it, too.
const pagesFor = time.Second
