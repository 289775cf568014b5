package edge

import (
	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"

	"listedge/metrics"
	"listedge/origin"
)

// newRouter makes the table of addresses. A path matches only as the client sent
// it: nothing is cleaned, redirected or compared without case, so that a proxy
// in front and this node never disagree on what a target means.
func (s *Server) newRouter() *router.Router {
	r := router.New()
	r.RedirectTrailingSlash, r.RedirectFixedPath = false, false
	r.HandleMethodNotAllowed, r.HandleOPTIONS = false, false // ANY does: 405 with a problem
	get := func(path string, route metrics.Route, serve func(*exchange) failure) {
		s.longestPath = max(s.longestPath, len(path))
		r.GET(path, s.handler(route, serve))
		r.HEAD(path, s.handler(route, serve))
		r.ANY(path, s.handler(route, func(*exchange) failure { return failure{problem: wrongMethod} }))
	}
	get("/v1/items", metrics.RouteItems, func(x *exchange) failure { return s.list(x, origin.Items) })
	get("/v1/contacts", metrics.RouteContacts, func(x *exchange) failure { return s.list(x, origin.Contacts) })
	get(openAPIPath, metrics.RouteOpenAPI, func(x *exchange) failure { return s.serveDocument(x, openAPI()) })
	for path := range s.docs {
		s.longestPath = max(s.longestPath, len(path))
	}
	r.NotFound = s.handler(metrics.RouteDocs, s.serveDocs)
	return r
}

// handler makes a handler of a function that writes the response or fails.
func (s *Server) handler(route metrics.Route, serve func(*exchange) failure) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		x := &ctx.Conn().(*conn).exchange
		x.route = route
		if f := serve(x); f.problem != nil {
			s.writeProblem(x, f)
		}
	}
}

// serveDocs answers every other path: /docs, what is below it, or 404. The router
// cannot have both /docs and /docs/, so it has neither.
func (s *Server) serveDocs(x *exchange) failure {
	d := s.docs[string(x.path)]
	switch {
	case d != nil && (x.http.IsGet() || x.http.IsHead()):
		return s.serveDocument(x, d)
	case d != nil:
		return failure{problem: wrongMethod}
	}
	x.route = metrics.RouteNone
	if f := s.limitPublic(x, 1); f.problem != nil {
		return f
	}
	return failure{problem: notFound}
}
