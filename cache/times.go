package cache

import "time"

// Span is a stretch of time; zero = there was none.
type Span struct {
	Began time.Time
	Took  time.Duration
}

// since ends a span now.
func since(began time.Time) Span { return Span{began, time.Since(began)} }

// Times are how long the parts of a flight took. All who waited for it share
// them, and nobody changes them after it has landed.
type Times struct {
	Redis Span // asking Redis, and waiting for the page that another node reads
	Fill  Span // reading the page from the origin, with waiting for a turn
	Query Span // of that, the server's part
}
