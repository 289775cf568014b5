package edge

import (
	"time"

	"github.com/valyala/fasthttp"

	"listedge/internal/tracing"
)

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
	switch method := string(x.method); method {
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
