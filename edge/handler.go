package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/limiter"
	"listedge/origin"
)

// handle answers a request without a body, as all are that get a page.
func (s *Server) handle(ctx *fasthttp.RequestCtx) { s.serve(ctx, false) }

// withoutFraming is fasthttp's content length of a request that has neither
// Content-Length nor Transfer-Encoding.
const withoutFraming = -2

// handleExpectation answers a request that waits for permission to send its
// body: no body is read here. A request without a body needs no permission
// (RFC 9110, 10.1.1) and goes on to handle.
func (s *Server) handleExpectation(ctx *fasthttp.RequestCtx) (status int) {
	if h := &ctx.Request.Header; h.ContentLength() == 0 || h.ContentLength() == withoutFraming {
		return fasthttp.StatusContinue
	}
	s.serve(ctx, true)
	return ctx.Response.StatusCode()
}

// serve is the way of every request. The router continues it at list, at a
// document or at a problem.
func (s *Server) serve(ctx *fasthttp.RequestCtx, body bool) {
	x := begin(ctx)
	x.body, x.last = body, body
	defer s.leave(x)
	defer s.finish(x)
	s.identify(x)
	s.noticeProxy(x)
	if f := s.checkHead(x); f.problem != nil {
		s.writeProblem(x, f)
		return
	}
	ctx.URI().SetPathBytes(x.path) // which the router reads: fasthttp's own may differ from the one sent
	s.router.Handler(ctx)
}

// list is the pipeline of a list request. Each step goes on or ends it.
func (s *Server) list(x *exchange, c origin.Collection) (f failure) {
	x.query.Collection = c
	if x.body {
		return failure{problem: bodyTooLarge}
	}
	if f = s.authenticate(x); f.problem != nil {
		return f
	}
	if s.revalidate(x) {
		s.writePage(x)
		return failure{}
	}
	if f = s.limit(x); f.problem != nil {
		return f
	}
	if f = s.parse(x); f.problem != nil {
		return f
	}
	if f = s.lookUp(x); f.problem != nil {
		return f
	}
	if f = s.checkMatch(x); f.problem != nil {
		return f
	}
	x.ahead = s.readNext(x)
	s.writePage(x)
	return failure{}
}

// identify takes over the client's request id, or makes one.
func (s *Server) identify(x *exchange) {
	x.id = x.idSpace[:0]
	if given := x.asked.id; len(given) == 1 && validRequestID(given[0]) {
		x.id = append(x.id, given[0]...)
	} else {
		x.id = x.conn.appendID(x.id)
	}
}

// limit takes a token from the key's bucket and from its workspace's.
func (s *Server) limit(x *exchange) failure {
	x.limits, x.limited = s.limiter.Take(x.now, x.client.bucket, x.client.workspaceBucket), true
	if x.limits.Source == limiter.SourceRedis || x.limits.Source == limiter.SourceLocalFallback || s.timed { // which took its time
		x.passed(stepLimit)
	}
	if x.limits.Allowed {
		return failure{}
	}
	return failure{problem: rateLimited, retry: wholeSeconds(x.limits.RetryAfter)}
}

// returnToken gives the token back that the exchange has taken, and says
// whether it did: only where the answer has cost nobody else anything, neither a
// query nor a trip to Redis, the limit's own included, which one of a burst
// below 16 takes each time. Those are what a limit protects.
func (s *Server) returnToken(x *exchange) bool {
	if !x.page.Local || x.ahead || x.limits.Source == limiter.SourceRedis {
		return false
	}
	s.limiter.Return(x.client.bucket, x.client.workspaceBucket)
	return true
}

// parse reads the parameters.
func (s *Server) parse(x *exchange) failure {
	if wrong := parseQuery(&x.query, x.parameters, x.scratch[:0]); wrong.details != nil {
		return failure{problem: invalid, faults: wrong}
	}
	return failure{}
}

// finish records what happened, once, and answers what panicked.
func (s *Server) finish(x *exchange) {
	if p := recover(); p != nil {
		x.http.Response.Reset()
		s.writeProblem(x, failure{problem: internalError, cause: fmt.Errorf("panic: %v\n%s", p, debug.Stack())})
	}
	s.record(x)
}

// record tells metrics, journal and, at debug level, the log of an answer.
func (s *Server) record(x *exchange) {
	status, took := x.status(), time.Since(x.began)
	x.now = x.began.Add(took)
	x.conn.counts.Answered(x.route, x.outcome, status, took)
	if s.tracer != nil {
		s.trace(x, status, took)
	}
	if k := x.kind(status, took); k != forgotten {
		s.remember(x, k, status, took)
	}
	if s.logger.Enabled(context.Background(), slog.LevelDebug) {
		s.logger.LogAttrs(context.Background(), slog.LevelDebug, "answered",
			slog.String("requestId", string(x.id)), slog.String("route", x.route.String()),
			slog.Int("status", status), slog.String("outcome", x.outcome.String()))
	}
}

// leave has fasthttp send the answer of a request that it has read.
func (s *Server) leave(x *exchange) {
	if x.conn.answer.pending {
		x.conn.answer.leave(&x.http.Response)
	} else {
		x.http.Response.Header.Set(headerRequestID, string(x.id))
	}
	if x.last || s.draining.Load() {
		x.conn.answer.linger = x.last
		x.http.SetConnectionClose()
	}
	x.conn.drop(x.http)
	x.end()
}

// handleUnreadable answers what fasthttp could not read as a request. Of a
// connection that was broken off, nobody reads an answer and none is counted.
func (s *Server) handleUnreadable(ctx *fasthttp.RequestCtx, err error) {
	if broken := (*net.OpError)(nil); errors.As(err, &broken) && !broken.Timeout() {
		ctx.Request = fasthttp.Request{} // the next connection has its own
		return
	}
	ctx.Response.Reset()
	ctx.Response.SkipBody = ctx.IsHead()
	if errors.Is(err, fasthttp.ErrBodyTooLarge) { // as every body is
		s.serve(ctx, true)
		return
	}
	x := begin(ctx)
	x.last = true
	defer s.leave(x)
	defer s.finish(x)
	s.identify(x)        // as far as it was read
	x.asked.bulky = true // of what was read and is no request, nothing tells the size
	s.writeProblem(x, failure{problem: unreadableProblem(err)})
}
