package edge

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"listedge/cache"
	"listedge/internal/tracing"
	"listedge/limiter"
)

// logRequest adds an exchange to the request log, and writes a line if the access log includes its
// class.
func (s *Server) logRequest(x *exchange, class logClass, status int, took time.Duration) {
	fill := fillTimes(&x.result)
	e := logEntry{Record: Record{Time: x.began.UTC().Round(0), Route: x.route.String(), Status: status, Outcome: x.outcome.String(), Bytes: x.bodySize()}}
	e.Took = TimesRecord{
		Total: took.Seconds(), Key: x.phases[phaseKey].Took.Seconds(), Limit: x.phases[phaseLimit].Took.Seconds(),
		Memory: x.phases[phaseMemory].Took.Seconds(), Wait: x.phases[phaseForward].Took.Seconds(),
		Redis: fill.Redis.Took.Seconds(), Fill: fill.Fill.Took.Seconds(), Query: fill.Query.Took.Seconds(), Shared: x.result.Collapsed,
	}
	e.setClient(s.clientAddress(x), x.id, x.http.UserAgent(), single(x.headers.key))
	cause := x.result.Err
	if x.failure != nil {
		e.Message, cause = x.failure.problem.message, cmp.Or(x.failure.cause, cause)
	}
	if cause != nil && class == failed {
		e.Cause = clip(cause.Error(), maxCause)
	}
	if x.keyEntry != nil {
		e.KeyID, e.WorkspaceID = x.keyEntry.Key.ID, x.keyEntry.Key.Workspace
	}
	if x.cost != notLimited {
		e.Limit = x.limitRecord()
	}
	if x.result.Entry != nil {
		e.Page = PageRecord{Tier: x.result.Source.String(), CacheStatus: cacheStatusOf(&x.result), ProofAge: x.result.Age.Seconds(), Missed: x.result.Missed}
	}
	s.log.add(class, &e)
	if s.accessLog.has(class) {
		r := e.record()
		s.logger.LogAttrs(context.Background(), slog.LevelInfo, "request", r.attributes()...)
	}
}

func (x *exchange) limitRecord() LimitRecord {
	d, key := &x.decision, &x.keyEntry.Key
	l := LimitRecord{Allowed: d.Allowed, Source: d.Source.String(), RetryAfter: d.RetryAfter.Seconds(),
		Key: BucketRecord{key.Limit.Rate, int32(key.Limit.Burst), int32(d.Key.Remaining)}}
	if d.Refused != limiter.Neither {
		l.RefusedBy = d.Refused.String()
	}
	if key.WorkspaceLimit.Set {
		l.Workspace = BucketRecord{key.WorkspaceLimit.Rate, int32(key.WorkspaceLimit.Burst), int32(d.Workspace.Remaining)}
	}
	if q := &key.Quota; q.Period != "" {
		l.Quota = QuotaRecord{uint32(q.Requests), uint32(d.Quota.Remaining), q.Period}
	}
	return l
}

// Records returns the logged requests with that id, the newest first. Several requests
// may have one id, because clients choose ids.
func (s *Server) Records(id string) []Record {
	records := []Record{}
	for class := range s.log {
		records = s.log[class].find(id, records)
	}
	slices.SortFunc(records, func(a, b Record) int { return b.Time.Compare(a.Time) })
	return records
}

// fillTimes returns the times of the flight that the request waited for; zero = none.
func fillTimes(r *cache.Result) cache.Times {
	if r.Times == nil {
		return cache.Times{}
	}
	return *r.Times
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
	part := func(name string, p cache.Span, of *tracing.Span) *tracing.Span { return of.Part(name, p.Began, p.Took) }
	fill := fillTimes(&x.result)
	part("key", x.phases[phaseKey], r)
	part("memory", x.phases[phaseMemory], r)
	part("limit", x.phases[phaseLimit], r)
	part("redis", fill.Redis, r)
	part("query", fill.Query, part("fill", fill.Fill, r))
	attributes := []tracing.Attribute{tracing.Text("http.route", x.route.String()), tracing.Text("listedge.request_id", string(x.id)),
		tracing.Text("listedge.outcome", x.outcome.String())}
	add := func(name, value string) { attributes = append(attributes, tracing.Text(name, value)) }
	if x.keyEntry != nil {
		add("listedge.key_id", x.keyEntry.Key.ID.String())
		add("listedge.workspace_id", x.keyEntry.Key.Workspace.String())
	}
	if x.cost != notLimited {
		add("listedge.limit_source", x.decision.Source.String())
		if x.decision.Refused != limiter.Neither {
			add("listedge.limit_refused_by", x.decision.Refused.String())
		}
	}
	if x.result.Entry != nil {
		add("listedge.cache_status", cacheStatusOf(&x.result))
		attributes = append(attributes, tracing.Bool("listedge.shared_flight", x.result.Collapsed))
	}
	r.End(took, status, attributes...)
}

// single returns the value of a header that was sent once. It returns nil if the header
// was sent several times, because the values may differ.
func single(lines [][]byte) []byte {
	if len(lines) == 1 {
		return lines[0]
	}
	return nil
}
