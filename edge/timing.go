package edge

import (
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/tracing"
)

// addTiming tells, where that is on, how long the parts of the exchange took:
// Server-Timing of W3C, in milliseconds.
func (s *Server) addTiming(a *answer, x *exchange) {
	if !s.serverTiming {
		return
	}
	begin := "Server-Timing: "
	for _, part := range x.timings() {
		if part.span.Began.IsZero() {
			continue
		}
		a.lines = append(append(append(a.lines, begin...), part.name...), ";dur="...)
		a.lines = strconv.AppendFloat(a.lines, float64(part.span.Took)/float64(time.Millisecond), 'f', 3, 64)
		begin = ", "
	}
	if begin == ", " {
		a.lines = append(a.lines, crlf...)
	}
}

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

// trace tells the collector of an exchange: no key, no search term and no
// cursor.
func (s *Server) trace(x *exchange, status int, took time.Duration) {
	r := s.tracer.Request(x.spanName(), x.began, tracing.Caller{Parent: only(x.asked.traceParent), State: only(x.asked.traceState), Trusted: s.trustsCaller(x)})
	if r == nil {
		return
	}
	r.Took, r.Status = took, status
	for _, part := range x.timings() {
		r.Steps = append(r.Steps, tracing.Step{Name: part.name, Began: part.span.Began, Took: part.span.Took, Within: part.within})
	}
	r.Attributes = append(r.Attributes, tracing.Text("http.route", x.route.String()),
		tracing.Text("listedge.request_id", string(x.id)), tracing.Text("listedge.outcome", x.outcome.String()))
	if x.known != nil {
		r.Attributes = append(r.Attributes, tracing.Text("listedge.key_id", x.known.Key.ID.String()), tracing.Text("listedge.workspace_id", x.known.Key.Workspace.String()))
	}
	if x.limited {
		r.Attributes = append(r.Attributes, tracing.Text("listedge.limit_source", x.limits.Source.String()))
	}
	if x.page.Entry != nil {
		r.Attributes = append(r.Attributes, tracing.Text("listedge.cache_status", string(cacheStatus(&x.page))), tracing.Bool("listedge.shared_flight", x.page.Collapsed))
	}
	r.Send()
}

// trustsCaller says whether the caller decides which requests are sampled: a
// client with a key, as long as its limit admits it, or a proxy of ours. Anybody
// else could have every request traced.
func (s *Server) trustsCaller(x *exchange) bool {
	return x.limits.Allowed || s.trusted(x.conn.peer())
}

// spanName is one of few: any other method is the client's invention.
func (x *exchange) spanName() string {
	switch method := string(x.http.Method()); method {
	case fasthttp.MethodGet, fasthttp.MethodHead:
		return method + " " + x.route.String()
	}
	return "HTTP"
}

// only is the header that was given once: two of it mean nothing.
func only(lines [][]byte) []byte {
	if len(lines) == 1 {
		return lines[0]
	}
	return nil
}
