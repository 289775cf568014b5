package edge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/internal/page"
	"listedge/internal/tracing"
	"listedge/metrics"
	"listedge/origin/usage"
)

// newRouter makes the router. A path must match exactly as the client sent it: nothing
// is cleaned, redirected or compared without case. So a proxy in front and this node
// never disagree on what a target means.
func (s *Server) newRouter() *router.Router {
	r := router.New()
	r.RedirectTrailingSlash, r.RedirectFixedPath = false, false
	r.HandleMethodNotAllowed, r.HandleOPTIONS = false, false // ANY does: 405 with a problem
	get := func(path string, route metrics.Route, serve func(*exchange) *failure) {
		s.longestPath = max(s.longestPath, len(path))
		r.GET(path, s.handler(route, serve))
		r.HEAD(path, s.handler(route, serve))
		r.ANY(path, s.handler(route, func(*exchange) *failure { return &failure{problem: wrongMethod} }))
	}
	for _, c := range lists.All {
		get("/v1/"+c.String(), metrics.RouteOf(c), func(x *exchange) *failure { return s.list(x, c) })
	}
	for path, d := range documents() {
		if path == openAPIPath || !s.NoDocs {
			get(path, metrics.RouteDocs, func(x *exchange) *failure { return s.serveDocument(x, d) })
		}
	}
	r.NotFound = s.handler(metrics.RouteNone, func(x *exchange) *failure {
		return cmp.Or(s.limitAddress(x, publicResponses, 1, noKeyLimited), &failure{problem: notFound})
	})
	return r
}

// handler makes fasthttp's handler of serve, which writes the response or returns a failure.
func (s *Server) handler(route metrics.Route, serve func(*exchange) *failure) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		x := &ctx.Conn().(*conn).exchange
		x.route = route
		if f := serve(x); f != nil {
			s.writeProblem(x, f)
		}
	}
}

// handle answers a request without a body.
func (s *Server) handle(ctx *fasthttp.RequestCtx) { s.serve(begin(ctx)) }

// handleBody answers a request that has a body, which is not read.
func (s *Server) handleBody(ctx *fasthttp.RequestCtx) {
	x := begin(ctx)
	x.hasBody, x.close = true, true
	s.serve(x)
}

// refuseBody prevents fasthttp from reading a body. fasthttp calls handleUnreadable at
// once if the announced length is above MaxRequestBodySize, which is 1. So lengths that
// it would accept are replaced by 2.
func refuseBody(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
	if n := h.ContentLength(); n == 1 || n == -1 { // chunked
		h.SetContentLength(2)
	}
	return c
}

// serve answers a request that could be read. The router continues at list, at a document or
// at a problem.
func (s *Server) serve(x *exchange) {
	defer s.finish(x)
	if x.headers.isForwarded {
		s.checkProxy(x)
	}
	if f := s.checkHeaders(x); f != nil {
		s.writeProblem(x, f)
		return
	}
	if len(x.path) > s.longestPath { // no route has it, and fasthttp would spend time to normalise it
		s.router.NotFound(x.http)
		return
	}
	x.http.URI().SetPathBytes(x.path) // the router reads it here, where fasthttp's own parser may have changed it
	s.router.Handler(x.http)
}

// begin returns the connection's exchange, for a new request, which has an id.
func begin(ctx *fasthttp.RequestCtx) *exchange {
	c := ctx.Conn().(*conn)
	x := &c.exchange
	x.conn, x.http, x.headers, x.began = c, ctx, &c.headers, time.Now()
	x.now = x.began
	x.headers.read(&ctx.Request.Header)
	if sent := x.headers.id; len(sent) == 1 && validRequestID(sent[0]) {
		x.id = append(x.idSpace[:0], sent[0]...)
	} else {
		c.requests++
		x.id = strconv.AppendUint(append(x.idSpace[:0], c.idPrefix...), c.requests, 36)
	}
	return x
}

// validRequestID reports whether id matches ^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$.
func validRequestID(id []byte) bool {
	if len(id) == 0 || len(id) > maxRequestID {
		return false
	}
	for i, c := range id {
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alphanumeric && (i == 0 || c != '.' && c != '_' && c != ':' && c != '-') {
			return false
		}
	}
	return true
}

// checkHeaders refuses requests that fasthttp accepts although they are not valid
// HTTP: a proxy in front might read them differently. It also splits the target.
func (s *Server) checkHeaders(x *exchange) *failure {
	h := &x.http.Request.Header
	var target, p *problem
	x.path, x.rawQuery, target = splitTarget(h.RequestURI())
	switch version := h.Protocol(); { // fasthttp allows any digit, dot and digit
	case bytes.HasPrefix(version, []byte("HTTP/0.")):
		p = badRequest
	case string(version) != "HTTP/1.1" && string(version) != "HTTP/1.0":
		p = wrongVersion
	case target != nil:
		p = target
	case x.headers.spaceInName, !isHost(h.Host()), x.conn.lines.encoding && !x.hasBody && isEncoded(h):
		p = badRequest
	case x.headers.count > maxHeaders:
		p = headersTooLarge
	case h.ContentLength() > refusedBody:
		p = bodyTooLarge
	default:
		return nil
	}
	x.close = true // because it is not certain where the next request begins
	return &failure{problem: p}
}

// list is the pipeline of a list request: key, parameters, memory, limit, fill, response. A
// failure ends it. But one of parameters or memory waits for the limit, which has to know what
// the request costs, and may refuse it.
func (s *Server) list(x *exchange, c lists.Collection) *failure {
	x.query.Collection = c
	if x.hasBody {
		return &failure{problem: bodyTooLarge}
	}
	if f := s.authenticate(x); f != nil {
		return f
	}
	x.decoded = x.scratch
	found := parseQuery(&x.query, x.rawQuery, &x.decoded).asFailure()
	if found == nil {
		found = s.lookUp(x)
	}
	if f := s.limit(x); f != nil {
		return f
	}
	if found != nil {
		return found
	}
	if f := s.fill(x); f != nil {
		return f
	}
	s.writePage(x)
	return nil
}

// finish reports a request, once, and passes its response to fasthttp. After a panic
// the response is an internal error.
func (s *Server) finish(x *exchange) {
	if p := recover(); p != nil {
		x.http.Response.Reset()
		s.writeProblem(x, &failure{problem: internalError, cause: fmt.Errorf("panic: %v\n%s", p, debug.Stack())})
	}
	s.report(x)
	r := &x.conn.response
	// The headers of every response. A response may contain what a client sent, so browsers
	// must not guess its type.
	r.lines.str("X-Content-Type-Options", "nosniff")
	r.lines.bytes("X-Request-Id", x.id)
	r.passTo(&x.http.Response)
	if x.close || s.draining.Load() {
		r.linger = x.close
		x.http.SetConnectionClose()
	}
	x.conn.dropRequest(x.http)
	*x = exchange{key: x.key[:0], scratch: x.scratch[:0]}
}

// report passes a request to metrics, usage, traces and the request log.
func (s *Server) report(x *exchange) {
	status := x.conn.response.status
	took := time.Since(x.began)
	s.Metrics.Answered(x.route, x.outcome, status, took)
	if x.client != nil {
		x.client.usage.Answered(status, x.bodySize())
	}
	var span *tracing.Span
	if s.Tracer != nil {
		span = s.startTrace(x)
	}
	class := x.class(status, took)
	if class == unlogged && span == nil {
		return
	}
	r := s.record(x, status, took)
	if span != nil {
		x.endTrace(span, r, took)
	}
	if class != unlogged {
		s.log.add(class, r)
	}
	if s.AccessLog.has(class) {
		s.Logger.LogAttrs(context.Background(), slog.LevelInfo, "request", r.attributes()...)
	}
}

// class returns the class in which the exchange is logged, or unlogged. A document counts
// as a hit.
func (x *exchange) class(status int, took time.Duration) logClass {
	switch {
	case x.failure != nil && x.failure.problem.log != nil, x.result.Err != nil, took >= slowFrom:
		return failed
	case status >= 400:
		return refused
	case !x.phases[phaseForward].Began.IsZero():
		return missed
	}
	if x.conn.hits++; x.conn.hits%hitsPerSample == 1 {
		return sampled
	}
	return unlogged
}

// lookUp looks in memory for the page, and decides what the request costs. What is not in
// memory is left to fill.
func (s *Server) lookUp(x *exchange) (f *failure) {
	x.key = x.query.AppendKey(x.key[:0])
	var err error
	x.control = parseCacheControl(x.headers.control)
	switch {
	case x.control.noCache && x.control.onlyIfCached: // no stored page may be returned, and the origin may not be read
		err = cache.ErrNotStored
	case x.control.noCache:
		return nil
	case x.control.onlyIfCached && !s.Cache.HasRedis():
		x.result, err = s.Cache.Stored(viewOf(x.query))
	default:
		x.result, _ = s.Cache.Hit(x.key, x.now)
	}
	if s.Tracer != nil {
		x.endPhase(phaseMemory)
	}
	switch {
	case err != nil:
		f = lookUpFailed(&x.query, err)
	case x.result.Entry != nil:
		f = checkMatch(x)
	}
	if f != nil || x.result.Entry != nil && x.notModified() {
		x.cost = free
	}
	return f
}

// fill finds a page that memory did not have, in Redis or in Postgres, as Cache-Control asks. It
// looks up a page again that was fresh before the request waited for its limit, because that page
// may be stale now.
func (s *Server) fill(x *exchange) *failure {
	if x.result.Entry != nil && x.waitedForLimit() {
		x.result, _ = s.Cache.Hit(x.key, x.now)
	}
	if x.result.Entry == nil {
		var err error
		switch {
		case x.control.onlyIfCached:
			x.result, err = s.Cache.Stored(viewOf(x.query))
		case x.control.noCache:
			x.result, err = s.Cache.Bypass(x.key, s.fillOf(x))
		default:
			x.result, err = s.Cache.Forward(x.key, s.fillOf(x))
		}
		x.endPhase(phaseForward)
		if err != nil {
			return lookUpFailed(&x.query, err)
		}
	}
	s.countLookUp(x)
	return checkMatch(x)
}

// fillOf returns the cache's means to read the query's page from the primary or a standby.
func (s *Server) fillOf(x *exchange) cache.Fill {
	view, by := viewOf(x.query), x.client.usage
	fill := cache.Fill{View: view, Primary: func(ctx context.Context, run string) (cache.FillResult, error) {
		rows, err := s.Origin.Fetch(ctx, view.Query, run)
		if errors.Is(err, page.ErrWrongServer) {
			err = fmt.Errorf("%w: %w", cache.ErrWrongServer, err)
		}
		return fillResult(by, rows, err)
	}}
	if s.Origin.HasStandbys() {
		fill.Standby = func(ctx context.Context, p changefeed.Proof) (cache.FillResult, error) {
			rows, err := s.Origin.FetchFromStandby(ctx, view.Query, p)
			return fillResult(by, rows, err)
		}
	}
	return fill
}

// fillResult makes the cache's form of a query's rows, and counts the query as the key's usage.
func fillResult(by *usage.Counter, r page.Read, err error) (cache.FillResult, error) {
	if !r.Began.IsZero() {
		by.Queried()
	}
	return cache.FillResult{Rows: r.Rows, End: r.End, At: r.At, Query: cache.Span{Began: r.Began, Took: r.Took}}, err
}

// countLookUp counts the page by where it was found.
func (s *Server) countLookUp(x *exchange) {
	x.outcome = [...]metrics.Outcome{cache.Memory: metrics.OutcomeMemory, cache.Redis: metrics.OutcomeRedis, cache.Origin: metrics.OutcomeOrigin}[x.result.Source]
	if x.result.Err != nil {
		x.outcome = metrics.OutcomeStale
	}
	s.Metrics.LookedUp(x.outcome, x.result.Collapsed)
	if x.outcome == metrics.OutcomeOrigin && x.result.Bypassed {
		x.outcome = metrics.OutcomeBypass
		x.client.usage.Bypassed()
	}
}

// checkMatch evaluates If-Match (RFC 9110, 13.1.1), which compares strongly. The weak
// ETag of a page matches no tag, so only * matches, and it matches every page. If-Match
// takes precedence over If-None-Match. If-Unmodified-Since and If-Modified-Since must be
// ignored (13.1.4, 13.1.3), because a page has no modification date.
func checkMatch(x *exchange) *failure {
	if lines := x.headers.match; len(lines) == 0 || len(lines) == 1 && string(bytes.TrimSpace(lines[0])) == "*" {
		return nil
	}
	return &failure{problem: etagMismatch}
}

// notModified reports whether the client has the page that was looked up.
func (x *exchange) notModified() bool {
	return matchesETag(x.headers.noneMatch, x.result.Entry.ETag[:])
}

// view is a query as the cache wants it (cache.View), with memory of its own, because a fill
// may outlive the request that began it. It depends on each field of the query: see
// TestEachFieldOfAQueryIsHandled.
type view struct {
	page.Query
	key  []byte
	list replica.Key
}

func viewOf(q page.Query) *view {
	v := &view{Query: q.Clone(), key: q.AppendKey(nil)}
	v.list = replica.Key{Table: changefeed.List{Workspace: q.Workspace, Collection: q.Collection}, Order: q.Sort, Filter: q.Filter,
		Search: lists.Fold(v.Search)}
	return v
}

// The methods of cache.View; the query itself has Frame.

func (v *view) Key() []byte                      { return v.key }
func (v *view) List() replica.Key                { return v.list }
func (v *view) After() lists.Position            { return v.Query.After }
func (v *view) Limit() int                       { return v.Query.Limit }
func (v *view) Behind(row *lists.Row) cache.View { return viewOf(v.Query.Behind(row)) }
