//go:build !race

package e2e

import "time"

// raceDetector are the flags with which the program is compiled.
var raceDetector []string

// pagesFor is how long pages are compared on each kind of fleet.
const pagesFor = 3 * time.Second
