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

// flightOf is when the parts of the flight were that was waited for, if any was.
func flightOf(page *cache.Result) cache.Times {
	if page.Times == nil {
		return cache.Times{}
	}
	return *page.Times
}

// timing is when a part of an exchange was, as others are told.
type timing struct {
	name   string
	span   cache.Span
	within int // index of the one that it is a part of; -1 = none
}

// timings are those of all parts that are timed, taken or not.
func (x *exchange) timings() [6]timing {
	flight := flightOf(&x.page)
	return [...]timing{
		{"key", x.steps[stepKey], -1}, {"limit", x.steps[stepLimit], -1}, {"memory", x.steps[stepMemory], -1},
		{"redis", flight.Redis, -1}, {"fill", flight.Fill, -1}, {"query", flight.Query, 4},
	}
}
