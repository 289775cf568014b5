package edge

import (
	"time"

	"listedge/cache"
)

// step is a part of the pipeline whose time is told apart.
type step uint8

const (
	stepKey step = iota
	stepLimit
	stepMemory
	stepForward // redis, the origin, or waiting for another request's flight to them
	steps
)

// passed notes that the exchange has come through the step, which began where
// the one timed before it ended. Steps that may have waited always are timed;
// the others, for whom reading the clock would be the larger part, where
// somebody wants to know.
func (x *exchange) passed(s step) {
	span, now := &x.steps[s], time.Now()
	if span.Began.IsZero() {
		span.Began = x.now
	}
	span.Took, x.now = now.Sub(span.Began), now
}

// flight is when the parts of the flight were that the exchange waited for.
func (x *exchange) flight() cache.Times {
	if x.page.Times == nil {
		return cache.Times{}
	}
	return *x.page.Times
}
