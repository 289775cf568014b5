package edge

import (
	"strconv"
	"time"

	"listedge/cache"
	"listedge/internal/tracing"
	"listedge/limiter"
)

// phase is a part of the pipeline that is timed separately.
type phase uint8

const (
	phaseKey phase = iota
	phaseMemory
	phaseLimit
	phaseForward // Redis, the origin, or waiting for another request's fill
	phases
)

// endPhase ends a phase. The phase began when the one before it ended. Phases that may
// have waited are always timed. The others are timed only for Server-Timing and traces,
// because reading the clock takes longer than most of them.
func (x *exchange) endPhase(p phase) {
	span, now := &x.phases[p], time.Now()
	if span.Began.IsZero() {
		span.Began = x.now
	}
	span.Took, x.now = now.Sub(span.Began), now
}

// fillTimes returns the times of the flight that the request waited for; zero = none.
func fillTimes(r *cache.Result) cache.Times {
	if r.Times == nil {
		return cache.Times{}
	}
	return *r.Times
}

// timings returns all phases and the parts of the flight. Those that did not happen have
// a zero Began.
func (x *exchange) timings() [6]tracing.Step {
	fill := fillTimes(&x.result)
	step := func(name string, s cache.Span, within int) tracing.Step {
		return tracing.Step{Name: name, Began: s.Began, Took: s.Took, Within: within}
	}
	return [...]tracing.Step{
		step("key", x.phases[phaseKey], -1), step("memory", x.phases[phaseMemory], -1), step("limit", x.phases[phaseLimit], -1),
		step("redis", fill.Redis, -1), step("fill", fill.Fill, -1), step("query", fill.Query, 4),
	}
}

// addTiming adds the header Server-Timing (W3C), in milliseconds. The description of a
// limit is what refused the request.
func addTiming(r *response, x *exchange) {
	begin := "Server-Timing: "
	for _, t := range x.timings() {
		if t.Began.IsZero() {
			continue
		}
		r.lines = append(append(append(r.lines, begin...), t.Name...), ";dur="...)
		r.lines = strconv.AppendFloat(r.lines, float64(t.Took)/float64(time.Millisecond), 'f', 3, 64)
		if t.Name == "limit" && x.decision.Refused != limiter.Neither {
			r.lines = append(append(r.lines, ";desc="...), x.decision.Refused.String()...)
		}
		begin = ", "
	}
	if begin == ", " {
		r.lines = append(r.lines, crlf...)
	}
}

// trace sends a span to the collector. It contains no API key, search term or cursor.
func (s *Server) trace(x *exchange, status int, took time.Duration) {
	name := "HTTP" // for methods other than GET and HEAD, which clients may make up
	if x.http.IsGet() || x.http.IsHead() {
		name = string(x.http.Method()) + " " + x.route.String()
	}
	// The sampling decision in traceparent counts only from a client within the limit
	// of its key, or from a trusted proxy. Any other client could have all its requests
	// traced.
	trusted := x.decision.Allowed && x.cost == oneToken || s.trusted(x.conn.peer())
	r := s.tracer.Request(name, x.began, tracing.Caller{Parent: single(x.headers.traceParent), State: single(x.headers.traceState), Trusted: trusted})
	if r == nil {
		return
	}
	s.metrics.Traced(x.route, x.outcome, took, r.ID())
	steps := x.timings()
	r.Took, r.Status, r.Steps = took, status, steps[:]
	r.Attributes = append(r.Attributes, tracing.Text("http.route", x.route.String()),
		tracing.Text("listedge.request_id", string(x.id)), tracing.Text("listedge.outcome", x.outcome.String()))
	if x.keyEntry != nil {
		r.Attributes = append(r.Attributes, tracing.Text("listedge.key_id", x.keyEntry.Key.ID.String()), tracing.Text("listedge.workspace_id", x.keyEntry.Key.Workspace.String()))
	}
	if x.cost != notLimited {
		r.Attributes = append(r.Attributes, tracing.Text("listedge.limit_source", x.decision.Source.String()))
		if x.decision.Refused != limiter.Neither {
			r.Attributes = append(r.Attributes, tracing.Text("listedge.limit_refused_by", x.decision.Refused.String()))
		}
	}
	if x.result.Entry != nil {
		r.Attributes = append(r.Attributes, tracing.Text("listedge.cache_status", cacheStatus(&x.result)), tracing.Bool("listedge.shared_flight", x.result.Collapsed))
	}
	r.Send()
}

// single returns the value of a header that was sent once. It returns nil if the header
// was sent several times, because the values may differ.
func single(lines [][]byte) []byte {
	if len(lines) == 1 {
		return lines[0]
	}
	return nil
}
