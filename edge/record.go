package edge

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"listedge/cache"
	"listedge/internal/tracing"
	"listedge/limiter"
	"listedge/origin/apikey"
)

// record returns what the log, explain and traces say of an exchange.
func (s *Server) record(x *exchange, status int, took time.Duration) Record {
	fill, key, agent := fillTimes(&x.result), single(x.headers.key), x.http.UserAgent()
	r := Record{
		RequestID: string(x.id), Arrived: x.began.UTC().Round(0), Route: x.route.String(), Status: status, Outcome: x.outcome.String(),
		Bytes: x.bodySize(), Client: s.clientAddress(x).WithZone("").String(), Agent: escaped(agent[:min(len(agent), maxAgent)]),
		// At most a quarter of a key, so that a short text that is no key is not known from its prefix either.
		KeyPrefix: escaped(key[:min(len(key)/4, apikey.VisiblePrefix)]),
		Took:      took.Seconds(), KeyTook: x.phases[phaseKey].Took.Seconds(), LimitTook: x.phases[phaseLimit].Took.Seconds(),
		MemoryTook: x.phases[phaseMemory].Took.Seconds(), WaitTook: x.phases[phaseForward].Took.Seconds(), Shared: x.result.Collapsed,
		RedisTook: fill.Redis.Took.Seconds(), FillTook: fill.Fill.Took.Seconds(), QueryTook: fill.Query.Took.Seconds(),
	}
	cause := x.result.Err
	if x.failure != nil {
		r.Message, cause = x.failure.problem.message, cmp.Or(x.failure.cause, cause)
	}
	if cause != nil {
		r.Cause = clip(cause.Error(), maxCause)
	}
	if x.keyEntry != nil {
		r.KeyID, r.WorkspaceID = x.keyEntry.Key.ID.String(), x.keyEntry.Key.Workspace.String()
	}
	if x.cost != notLimited {
		d := &x.decision
		r.Limit, r.RetryAfter = d.Source.String(), d.RetryAfter.Seconds()
		if d.Refused != limiter.Neither {
			r.RefusedBy = d.Refused.String()
		}
		r.RateLimitPolicy, r.RateLimit = x.conn.response.header("RateLimit-Policy"), x.conn.response.header("RateLimit")
	}
	if x.result.Entry != nil {
		r.Tier, r.CacheStatus, r.ProofAge, r.Missed = x.result.Source.String(), cacheStatusOf(&x.result), x.result.Age.Seconds(), x.result.Missed
	}
	return r
}

// escaped escapes what a client sent, because an operator's terminal may show it.
func escaped(text []byte) string {
	quoted := strconv.QuoteToASCII(string(text))
	return quoted[1 : len(quoted)-1]
}

// Records returns the logged requests with that id, the newest first. Several requests
// may have one id, because clients choose ids.
func (s *Server) Records(id string) []Record {
	records := []Record{}
	for class := range s.log {
		records = s.log[class].find(id, records)
	}
	slices.SortFunc(records, func(a, b Record) int { return b.Arrived.Compare(a.Arrived) })
	return records
}

// fillTimes returns the times of the flight that the request waited for; zero = none.
func fillTimes(r *cache.Result) cache.Times {
	if r.Times == nil {
		return cache.Times{}
	}
	return *r.Times
}

// startTrace returns the span of the request, or nil if it is not sampled.
func (s *Server) startTrace(x *exchange) *tracing.Span {
	name := "HTTP" // for methods other than GET and HEAD, which clients may make up
	if x.http.IsGet() || x.http.IsHead() {
		name = string(x.http.Method()) + " " + x.route.String()
	}
	// The caller's trace counts only from a client within the limit of its key, or from a trusted
	// proxy. Any other client could have all its requests traced.
	var parent, state []byte
	if x.decision.Allowed && x.cost == oneToken || s.trusted(x.conn.peer()) {
		parent, state = single(x.headers.traceParent), single(x.headers.traceState)
	}
	return s.Tracer.Request(name, x.began, parent, state)
}

// endTrace sends the span to the collector. It contains no API key, search term or cursor.
func (x *exchange) endTrace(root *tracing.Span, r *Record, took time.Duration) {
	part := func(name string, p cache.Span, of *tracing.Span) *tracing.Span { return of.Part(name, p.Began, p.Took) }
	fill := fillTimes(&x.result)
	part("key", x.phases[phaseKey], root)
	part("memory", x.phases[phaseMemory], root)
	part("limit", x.phases[phaseLimit], root)
	part("redis", fill.Redis, root)
	part("query", fill.Query, part("fill", fill.Fill, root))
	root.End(took, r.Status, map[string]string{
		"http.route": r.Route, "listedge.request_id": r.RequestID, "listedge.outcome": r.Outcome,
		"listedge.key_id": r.KeyID, "listedge.workspace_id": r.WorkspaceID,
		"listedge.limit_source": r.Limit, "listedge.limit_refused_by": r.RefusedBy, "listedge.cache_status": r.CacheStatus,
	})
}

// single returns the value of a header that was sent once. It returns nil if the header
// was sent several times, because the values may differ.
func single(lines [][]byte) []byte {
	if len(lines) == 1 {
		return lines[0]
	}
	return nil
}
