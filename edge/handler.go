package edge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
	"listedge/stream"
)

// handle is the way in of a request that fasthttp has read. (One that repeats
// the lines of another comes in by repeat.go.)
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	x := begin(ctx)
	x.path, x.parameters = ctx.URI().PathOriginal(), ctx.URI().QueryString()
	s.serve(x)
	x.conn.study(x)
	s.leave(x)
}

// serve is every request's way through the house.
func (s *Server) serve(x *exchange) {
	defer s.finish(x)
	s.identify(x)
	if f := s.answer(x); f.problem != nil {
		s.writeProblem(x, f)
	}
}

// answer is the pipeline. Each step either goes on or ends the request.
func (s *Server) answer(x *exchange) (f failure) {
	if f = s.findRoute(x); f.problem != nil || !x.route.Paged() {
		return f
	}
	if f = s.authenticate(x); f.problem != nil {
		return f
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
	s.writePage(x)
	s.readNext(x)
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

// findRoute looks at path and method. The path is taken as the client wrote
// it, so that no two spellings of one address can be told apart by a proxy in
// front and not here.
func (s *Server) findRoute(x *exchange) failure {
	switch string(x.path) {
	case "/v1/items":
		x.route, x.query.Collection = metrics.RouteItems, origin.Items
	case "/v1/contacts":
		x.route, x.query.Collection = metrics.RouteContacts, origin.Contacts
	case "/openapi.json":
		x.route = metrics.RouteOpenAPI
	default:
		if string(x.path) != "/docs" && !bytes.HasPrefix(x.path, []byte("/docs/")) {
			return failure{problem: notFound}
		}
		x.route = metrics.RouteDocs
	}
	if method := string(x.method); method != fasthttp.MethodGet && method != fasthttp.MethodHead {
		return failure{problem: wrongMethod}
	}
	if x.http != nil && len(x.http.PostBody()) > 0 { // one byte passes the server's own limit
		return failure{problem: bodyTooLarge}
	}
	switch x.route {
	case metrics.RouteOpenAPI:
		serveOpenAPI(x.http)
	case metrics.RouteDocs:
		if serveDocs(x.http); x.http.Response.StatusCode() == fasthttp.StatusNotFound {
			x.http.Response.Reset()
			return failure{problem: notFound}
		}
	}
	return failure{}
}

// limit takes a token from the key's bucket and from its workspace's.
func (s *Server) limit(x *exchange) failure {
	x.limits, x.limited = s.limiter.TakeAt(x.now, x.client.bucket, x.client.workspaceBucket), true
	if x.limits.Source == limiter.SourceRedis || x.limits.Source == limiter.SourceLocalFallback || s.timed { // which took its time
		x.passed(stepLimit)
	}
	if x.limits.Allowed {
		return failure{}
	}
	return failure{problem: rateLimited, retry: wholeSeconds(x.limits.RetryAfter)}
}

// parse reads the parameters.
func (s *Server) parse(x *exchange) failure {
	if wrong := parseQuery(&x.query, x.parameters, x.scratch[:0]); wrong != nil {
		return failure{problem: invalid, details: wrong}
	}
	return failure{}
}

// lookUp finds the page, in memory if it can.
func (s *Server) lookUp(x *exchange) failure {
	x.key = appendPageKey(x.key[:0], &x.query, x.scratch[:0])
	bypass := asksForTheOrigin(x.asked.control)
	hit := false
	if !bypass {
		if x.page, hit = s.cache.HitAgain(&x.client.spot, x.key, x.now); hit {
			x.client.leaveTrail(x.page.Page)
		}
		if s.timed {
			x.passed(stepMemory)
		}
	}
	if !hit {
		var err error
		x.page, err = s.forward(x, bypass)
		x.passed(stepForward)
		if err != nil {
			return failure{problem: lookUpProblem(err), retry: retrySoon, cause: err}
		}
	}
	var tier metrics.Tier
	switch {
	case x.page.Err != nil:
		tier, x.outcome = metrics.TierStale, metrics.OutcomeStale
	case x.page.Source == cache.Memory:
		tier, x.outcome = metrics.TierMemory, metrics.OutcomeMemory
	case x.page.Source == cache.Redis:
		tier, x.outcome = metrics.TierRedis, metrics.OutcomeRedis
	default:
		tier, x.outcome = metrics.TierOrigin, metrics.OutcomeOrigin
	}
	x.conn.counts.LookedUp(tier, x.page.Collapsed)
	return failure{}
}

// forward is the way of a page that is not in memory.
func (s *Server) forward(x *exchange, bypass bool) (cache.Result, error) {
	pair, fill := s.fillOf(x, x.query)
	if bypass {
		return s.cache.Bypass(x.key, pair, fill)
	}
	return s.cache.Forward(x.key, pair, fill)
}

// fillOf is how the page of an exchange's query, or of one that follows from
// it, is read, and what changes it. The query is a copy: a fill may outlive the
// request that began it.
func (s *Server) fillOf(x *exchange, q origin.Query) (stream.Pair, cache.Fill) {
	pair := stream.Pair{Workspace: q.Workspace, Collection: collections[q.Collection]}
	fill := cache.Fill{Compress: acceptsGzip(x.asked.encoding), Primary: func(ctx context.Context, run string) (cache.Filled, error) {
		return filled(s.origin.FetchFrom(ctx, q, run))
	}}
	if s.origin.HasStandbys() {
		fill.Standby = func(ctx context.Context, server string, lsn uint64) (cache.Filled, error) {
			return filled(s.origin.FetchFromStandby(ctx, q, server, lsn))
		}
	}
	return pair, fill
}

// readNext has the next page of a walk read behind the answer: of a client that
// came by a cursor, while the database has nothing better to do.
func (s *Server) readNext(x *exchange) {
	if !x.query.After.Set || x.page.Err != nil || !x.page.Page.Leads() || s.origin.Busy() {
		return
	}
	q := x.query
	var err error
	if q.After, err = q.ParseCursor([]byte(x.page.Page.Next)); err != nil {
		return // by a version that writes other cursors
	}
	pair, fill := s.fillOf(x, q)
	s.cache.ReadNext(appendPageKey(nil, &q, nil), pair, fill)
}

func filled(p origin.Page, err error) (cache.Filled, error) {
	return cache.Filled{Body: p.Body, Next: p.NextCursor, Snapshot: p.Snapshot, Run: p.Run, Server: p.Server, LSN: p.LSN,
		Query: cache.Span{Began: p.Asked, Took: p.Took}}, err
}

// collections names the origin's collections in the log of changes.
var collections = [...]stream.Collection{origin.Items: stream.Items, origin.Contacts: stream.Contacts}

// appendPageKey appends the cache key of a query's page: everything the page
// depends on, and nothing else. scratch is for its parts.
func appendPageKey(dst []byte, q *origin.Query, scratch []byte) []byte {
	scope := q.AppendScope(scratch)
	limit := append(scope[len(scope):], byte(q.Limit))
	return cache.AppendKey(dst, q.Workspace, scope, limit, q.AppendPosition(limit[len(limit):]))
}

// finish records what happened, once, and answers what panicked.
func (s *Server) finish(x *exchange) {
	if p := recover(); p != nil {
		if x.http != nil {
			x.http.Response.Reset()
		}
		s.writeProblem(x, failure{problem: internalError, cause: fmt.Errorf("panic: %v\n%s", p, debug.Stack())})
	}
	s.record(x)
}

// leave has fasthttp send the answer of a request that it has read.
func (s *Server) leave(x *exchange) {
	if x.conn.answer.pending {
		x.conn.answer.leave(&x.http.Response)
	} else {
		x.http.Response.Header.Set(headerRequestID, string(x.id))
	}
	if s.draining.Load() {
		x.http.SetConnectionClose()
	}
	x.end()
}

// handleUnreadable answers what fasthttp could not read as a request. Of a
// connection that was broken off, nobody reads an answer and none is counted.
func (s *Server) handleUnreadable(ctx *fasthttp.RequestCtx, err error) {
	if broken := (*net.OpError)(nil); errors.As(err, &broken) && !broken.Timeout() {
		return
	}
	x := begin(ctx)
	defer s.leave(x)
	defer s.finish(x)
	s.identify(x) // as far as it was read
	ctx.Response.Reset()
	ctx.Response.SkipBody = ctx.IsHead()
	s.writeProblem(x, failure{problem: unreadableProblem(err)})
}
