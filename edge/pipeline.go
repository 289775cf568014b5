package edge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/page"
	"listedge/internal/tracing"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin/apikey"
)

// exchange is one request and its state in the pipeline. The connection owns it and uses
// it again: nothing in it outlives the handler.
type exchange struct {
	server  *Server
	conn    *conn
	http    *fasthttp.RequestCtx
	headers *requestHeaders
	began   time.Time
	now     time.Time // began, or when the last timed phase ended

	path, rawQuery []byte // of the target, as the client sent them

	hasBody bool   // the request announced a body
	close   bool   // the connection ends with this request
	id      []byte // the request id, in idSpace
	route   *metrics.Route

	// What the steps have returned, for the report.
	caller  caller
	grant   grant
	result  cache.Result   // without an entry: there is no page
	tracked *cache.Tracked // what a client that tracks the list gets; nil = it does not
	failure *failure       // nil = the response is no problem
	phases  [phases]cache.Span

	idSpace  [maxRequestID]byte
	request  request // in which parse reads
	textRoom []byte  // for decoded parameters
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
func (x *exchange) checkHeaders() *failure {
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
func (x *exchange) list(e *endpoint) (f *failure) {
	if x.hasBody {
		return &failure{problem: bodyTooLarge}
	}
	x.caller, f = x.authenticate(e)
	if f != nil {
		return f
	}
	asked, early := x.parse(e)
	cost := oneToken
	if early == nil {
		x.result, cost, early = x.lookInMemory(asked)
	}
	x.grant, f = x.limit(cost)
	if f != nil {
		x.result, x.tracked = cache.Result{}, nil // a page in memory is not served
		return f
	}
	switch {
	case early != nil:
		return early
	case asked.tracks:
		return x.track(asked)
	}
	x.result, f = x.fill(asked, x.result)
	if f != nil {
		return f
	}
	x.conn.response.writePage(x, &asked.Query)
	return nil
}

// caller is who sends a request.
type caller struct {
	key    *apikey.Key // valid or not; nil = no key is known
	client *client     // nil = the key is not valid
}

// cost is how many tokens a request takes from its client.
type cost uint8

const (
	notLimited cost = iota // the limiter was not asked
	free                   // nothing: memory answers with 304, 412 or 504
	oneToken               // a token of the key's bucket, of its workspace's and of the quota
)

// grant is what the limiter said, and of what; zero = it was not asked.
type grant struct {
	cost     cost
	decision limiter.Decision
	period   *period // of the workspace's quota; nil = it has none
}

// waited reports whether the request may have waited for Redis to take its tokens.
func (g *grant) waited() bool {
	return g.cost == oneToken && (g.decision.Source == limiter.SourceRedis || g.decision.Source == limiter.SourceLocalFallback)
}

// authenticate finds the API key of the request and checks it. A malformed key is
// refused at once. A key that is not in memory is looked up in the database. If the
// client's address has sent too many unknown keys, its look-ups wait for those of
// other addresses. They are not refused, because many clients may share an address.
func (x *exchange) authenticate(e *endpoint) (by caller, f *failure) {
	if len(x.headers.key) != 1 || len(x.headers.key[0]) == 0 {
		return by, x.unauthorised(keyMissing)
	}
	var lookup *addressBuckets // nil = there was none
	entry, err := x.server.Keys.Authenticate(x.now, x.headers.key[0], &x.conn.lastKey, func() (suspect bool) {
		lookup, suspect = x.server.guard.beginLookup(x.server.clientAddress(x))
		return suspect
	})
	if lookup != nil { // until the token of a refused key is taken
		defer x.server.guard.endLookup(lookup)
	}
	if lookup != nil || x.server.Tracer != nil {
		x.endPhase(phaseKey)
	}
	switch {
	case errors.Is(err, apikey.ErrMalformed):
		return by, x.unauthorised(keyMalformed)
	case errors.Is(err, apikey.ErrUnknown):
		return by, x.unauthorised(keyRefused)
	case err != nil:
		return by, &failure{problem: keysDown, retry: retrySoon, cause: err}
	}
	by.key = &entry.Key
	if !by.key.Valid(x.now) {
		return by, x.unauthorised(keyRefused)
	}
	by.client = &entry.Value
	switch {
	case by.key.Suspended:
		return by, &failure{problem: suspended}
	case !by.key.May(e.List):
		return by, &failure{problem: scopeMissing}
	}
	return by, nil
}

// unauthorised counts a request without a valid key for the client's address, and returns
// p as its failure; a 429 instead if the address has sent too many.
func (x *exchange) unauthorised(p *problem) *failure {
	bucket := malformedKeys
	if p == keyRefused {
		bucket = refusedKeys
	}
	return cmp.Or(x.server.guard.limit(x, bucket, 1, authLimited), &failure{problem: p})
}

// parse reads what the client asks for. The request holds until the next one.
func (x *exchange) parse(e *endpoint) (*request, *failure) {
	asked, room := &x.request, x.textRoom
	*asked = request{Query: page.Query{List: e.List, Tenant: e.Owner(x.caller.key.Tenant)}, control: parseCacheControl(x.headers.control)}
	return asked, e.parseQuery(asked, x.rawQuery, &room).asFailure()
}

// lookInMemory looks in memory for the page, and says what the request costs. early is a failure
// that waits for the limit. What is not in memory is left to fill.
func (x *exchange) lookInMemory(asked *request) (found cache.Result, c cost, early *failure) {
	var err error
	switch {
	case asked.tracks: // such a page is not kept
		early = checkMatch(x)
		if early == nil && asked.control.OnlyIfCached {
			found, early = x.findTracked(asked)
		}
	case asked.control.NoCache && asked.control.OnlyIfCached: // no stored page may be returned, and the origin may not be read
		err = cache.ErrNotStored
	case asked.control.NoCache && !x.isConditional(): // it costs a token, wherever the page is: fill looks
		return found, oneToken, nil
	case asked.control.NoCache:
		found, _ = x.server.Cache.Proven(&asked.Query)
		x.endPhase(phaseMemory) // it may have waited
	case asked.control.OnlyIfCached && !x.server.Cache.HasRedis():
		found, err = x.server.Cache.Stored(&asked.Query)
	default:
		found, _ = x.server.Cache.Hit(&asked.Query, x.now)
	}
	if x.server.Tracer != nil {
		x.endPhase(phaseMemory)
	}
	switch {
	case err != nil:
		early = lookUpFailed(&asked.Query, err)
	case found.Entry != nil:
		early = checkMatch(x)
	}
	if early != nil || found.Entry != nil && x.has(found.Entry) {
		return found, free, early
	}
	return found, oneToken, nil
}

// limit takes the tokens that the request costs. It refuses a request that costs none only if
// a rate is 0.
func (x *exchange) limit(c cost) (g grant, f *failure) {
	client := x.caller.client
	var quota *limiter.Counter
	if client.quota != nil {
		g.period = client.quota.at(x.began)
		quota = g.period.count
	}
	g.cost = c
	if c == free {
		g.decision = x.server.Limiter.Peek(x.now, client.bucket, client.workspaceBucket, quota)
	} else {
		g.decision = x.server.Limiter.Take(x.now, client.bucket, client.workspaceBucket, quota)
	}
	if x.server.Tracer != nil || g.waited() {
		x.endPhase(phaseLimit)
	}
	switch {
	case g.decision.Allowed:
		return g, nil
	case g.decision.UsedUp():
		f = &failure{problem: quotaReached}
	default:
		f = &failure{problem: rateLimited}
	}
	f.retry = wholeSeconds(g.decision.RetryAfter)
	return g, f
}

// fill finds a page that memory did not have, in Redis or in Postgres, as Cache-Control asks. It
// looks up a page again that was fresh before the request waited for its limit, because that page
// may be stale now.
func (x *exchange) fill(asked *request, found cache.Result) (cache.Result, *failure) {
	pages, usage, noCache := x.server.Cache, x.caller.client.usage, asked.control.NoCache
	again := found.Entry != nil && x.grant.waited()
	switch {
	case noCache && (again || !x.isConditional()):
		found, _ = pages.Proven(&asked.Query)
		x.endPhase(phaseForward)
	case again:
		found, _ = pages.Hit(&asked.Query, x.now)
	}
	if found.Entry == nil {
		var err error
		switch {
		case asked.control.OnlyIfCached:
			found, err = pages.Stored(&asked.Query)
		case noCache:
			found, err = pages.Bypass(&asked.Query, usage.Queried)
		default:
			found, err = pages.Forward(&asked.Query, x.began, usage.Queried)
		}
		x.endPhase(phaseForward)
		if err != nil {
			return found, lookUpFailed(&asked.Query, err)
		}
	}
	tier := tierOf(&found)
	x.server.Metrics.LookedUp(tier, found.Collapsed)
	if found.Bypassed {
		usage.Bypassed()
	}
	return found, checkMatch(x)
}

// tierOf is where a page, also one of changes, was found.
func tierOf(r *cache.Result) metrics.Outcome {
	if r.Err != nil {
		return metrics.OutcomeStale
	}
	return [...]metrics.Outcome{cache.Memory: metrics.OutcomeMemory, cache.Redis: metrics.OutcomeRedis, cache.Origin: metrics.OutcomeOrigin}[r.Source]
}

// outcome is how the request ended.
func (x *exchange) outcome() metrics.Outcome {
	switch {
	case x.failure != nil && x.failure.problem.status == fasthttp.StatusTooManyRequests:
		return metrics.OutcomeLimited
	case x.failure != nil:
		return metrics.OutcomeError
	case x.result.Entry == nil && x.tracked == nil:
		return metrics.OutcomeOther
	case x.result.Bypassed:
		return metrics.OutcomeBypass
	case x.conn.response.status == fasthttp.StatusNotModified:
		return metrics.OutcomeNotModified
	}
	return tierOf(&x.result)
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

// isConditional reports whether the answer may be a 304 or a 412, which cost no token if memory gives them.
func (x *exchange) isConditional() bool { return len(x.headers.noneMatch)+len(x.headers.match) > 0 }

// has reports whether the client has the page.
func (x *exchange) has(page *cache.Entry) bool { return matchesETag(x.headers.noneMatch, page.ETag[:]) }

// fail answers with a problem, and logs it if it is a failure of the service.
func (x *exchange) fail(f *failure) {
	x.conn.response.writeProblem(x, f)
	x.failure = f
	if f.problem.log != nil {
		level := slog.LevelError
		if f.problem == unproven { // the client waits
			level = slog.LevelWarn
		}
		f.problem.log.Do(func() {
			x.server.Logger.LogAttrs(context.Background(), level, "request failed", slog.String("requestId", string(x.id)),
				slog.String("route", x.route.String()), slog.Int("status", f.problem.status), slog.Any("error", f.cause))
		})
	}
}

// finish reports a request, once, and passes its response to fasthttp. After a panic
// the response is an internal error.
func (x *exchange) finish() {
	if p := recover(); p != nil {
		x.http.Response.Reset()
		x.fail(&failure{problem: internalError, cause: fmt.Errorf("panic: %v\n%s", p, debug.Stack())})
	}
	x.report()
	r := &x.conn.response
	// The headers of every response. A response may contain what a client sent, so browsers
	// must not guess its type.
	r.lines.put("X-Content-Type-Options: nosniff\r\nX-Request-Id: ")
	r.lines = append(r.lines, x.id...)
	r.lines.end()
	r.passTo(&x.http.Response)
	if x.close || x.server.draining.Load() {
		r.linger = x.close
		x.http.SetConnectionClose()
	}
	x.conn.dropRequest(x.http)
	*x = exchange{textRoom: x.textRoom}
}

// report passes a request to metrics, usage, traces and the request log.
func (x *exchange) report() {
	status := x.conn.response.status
	took := time.Since(x.began)
	x.server.Metrics.Answered(x.route, x.outcome(), status, took)
	if x.caller.client != nil {
		x.caller.client.usage.Answered(status, x.bodySize())
	}
	var span *tracing.Span
	if x.server.Tracer != nil {
		span = startTrace(x)
	}
	class := x.class(status, took)
	if class == unlogged && span == nil {
		return
	}
	r := recordOf(x, status, took)
	if span != nil {
		endTrace(x, span, r, took)
	}
	if class != unlogged {
		x.server.log.add(class, r)
	}
	if x.server.AccessLog.has(class) {
		x.server.Logger.LogAttrs(context.Background(), slog.LevelInfo, "request", r.attributes()...)
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
	x.conn.hits++
	if x.conn.hits%hitsPerSample == 1 {
		return sampled
	}
	return unlogged
}

// phase is a part of the pipeline that is timed separately.
type phase uint8

const (
	phaseKey phase = iota
	phaseMemory
	phaseLimit
	phaseForward // Redis, the origin, or waiting for another request's fill or for a proof
	phases
)

// endPhase notes how long a phase took since the one before it ended. Phases that may
// have waited are always timed. The others are timed only for traces,
// because reading the clock takes longer than most of them.
func (x *exchange) endPhase(p phase) {
	span, now := &x.phases[p], time.Now()
	if span.Began.IsZero() {
		span.Began = x.now
	}
	span.Took, x.now = now.Sub(span.Began), now
}

// bodySize returns the size of the response's body as it is sent.
func (x *exchange) bodySize() int {
	if x.http.IsHead() {
		return 0
	}
	return x.conn.response.size
}

const maxRequestID = 128 // bytes of an id that a client chose
