//go:build !race

package main

import "time"

// pagesFor is how long pages are compared on each kind of fleet.
const pagesFor = 6 * time.Second
