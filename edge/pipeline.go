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
	"listedge/internal/lists"
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

	hasBody  bool   // the request announced a body
	close    bool   // the connection ends with this request
	id       []byte // the request id, in idSpace
	route    metrics.Route
	keyEntry *apikey.Entry[client] // the API key, valid or not; nil before the look-up
	client   *client               // once the key is known to be valid
	query    page.Query            // once parsed
	control  cacheControl          // once memory was looked in
	cost     cost                  // once limited
	decision limiter.Decision      // once limited
	period   *period               // of the workspace's quota, once limited; nil = none
	result   cache.Result          // once looked up; without an entry if it has to be filled
	outcome  metrics.Outcome
	failure  *failure // once answered with a problem
	phases   [phases]cache.Span

	idSpace [maxRequestID]byte
	scratch []byte // scratch: decoded parameters
	decoded []byte // parameters, in scratch if there is room: the query refers to them
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
func (x *exchange) list(c lists.Collection) *failure {
	x.query.Collection = c
	if x.hasBody {
		return &failure{problem: bodyTooLarge}
	}
	if f := x.authenticate(); f != nil {
		return f
	}
	early, cost := x.answerFromMemory()
	if f := x.limit(cost); f != nil {
		return f
	}
	if early != nil {
		return early
	}
	if f := x.fill(); f != nil {
		return f
	}
	x.conn.response.writePage(x)
	return nil
}

// authenticate finds the API key of the request and checks it. A malformed key is
// refused at once. A key that is not in memory is looked up in the database. If the
// client's address has sent too many unknown keys, its look-ups wait for those of
// other addresses. They are not refused, because many clients may share an address.
func (x *exchange) authenticate() *failure {
	if len(x.headers.key) != 1 || len(x.headers.key[0]) == 0 {
		return x.unauthorised(keyMissing)
	}
	lookedUp := false
	entry, err := x.server.Keys.Authenticate(x.headers.key[0], func() (suspect bool) {
		lookedUp = true
		return x.server.guard.exhausted(x.server.clientAddress(x))
	})
	if lookedUp || x.server.Tracer != nil {
		x.endPhase(phaseKey)
	}
	switch {
	case errors.Is(err, apikey.ErrMalformed):
		return x.unauthorised(keyMalformed)
	case errors.Is(err, apikey.ErrUnknown):
		return x.unauthorised(keyRefused)
	case err != nil:
		return &failure{problem: keysDown, retry: retrySoon, cause: err}
	}
	x.keyEntry = entry
	key, client := &entry.Key, &entry.Value
	if !key.Valid(x.now) {
		return x.unauthorised(keyRefused)
	}
	x.client = client
	switch {
	case key.Suspended:
		return &failure{problem: suspended}
	case !key.May(x.query.Collection):
		return &failure{problem: scopeMissing}
	}
	x.query.Workspace = key.Workspace
	return nil
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

// answerFromMemory reads the parameters, looks in memory for the page, and says what the request
// costs. early is a failure that waits for the limit. What is not in memory is left to fill.
func (x *exchange) answerFromMemory() (early *failure, c cost) {
	x.decoded = x.scratch
	if early = parseQuery(&x.query, x.rawQuery, &x.decoded).asFailure(); early != nil {
		return early, oneToken
	}
	var err error
	x.control = parseCacheControl(x.headers.control)
	switch {
	case x.control.noCache && x.control.onlyIfCached: // no stored page may be returned, and the origin may not be read
		err = cache.ErrNotStored
	case x.control.noCache:
		return nil, oneToken
	case x.control.onlyIfCached && !x.server.Cache.HasRedis():
		x.result, err = x.server.Cache.Stored(&x.query)
	default:
		x.result, _ = x.server.Cache.Hit(&x.query, x.now)
	}
	if x.server.Tracer != nil {
		x.endPhase(phaseMemory)
	}
	switch {
	case err != nil:
		early = lookUpFailed(&x.query, err)
	case x.result.Entry != nil:
		early = checkMatch(x)
	}
	if early != nil || x.result.Entry != nil && x.notModified() {
		return early, free
	}
	return nil, oneToken
}

// cost is how many tokens a request takes from its client.
type cost uint8

const (
	notLimited cost = iota // not known yet: the limiter was not asked
	free                   // nothing: memory answers with 304, 412 or 504
	oneToken               // a token of the key's bucket, of its workspace's and of the quota
)

// limit takes the tokens that the request costs. It refuses a request that costs none only if
// a rate is 0.
func (x *exchange) limit(c cost) *failure {
	x.cost = c
	if c == free {
		x.decision = x.server.Limiter.Peek(x.now, x.client.bucket, x.client.workspaceBucket, x.quota())
	} else {
		x.decision = x.server.Limiter.Take(x.now, x.client.bucket, x.client.workspaceBucket, x.quota())
	}
	if x.server.Tracer != nil || x.waitedForLimit() {
		x.endPhase(phaseLimit)
	}
	if x.decision.Allowed {
		return nil
	}
	x.result = cache.Result{} // a page in memory is not served
	problem := rateLimited
	if x.decision.UsedUp() {
		problem = quotaReached
	}
	return &failure{problem: problem, retry: wholeSeconds(x.decision.RetryAfter)}
}

// waitedForLimit reports whether the request may have waited for Redis to take its tokens.
func (x *exchange) waitedForLimit() bool {
	return x.cost == oneToken && (x.decision.Source == limiter.SourceRedis || x.decision.Source == limiter.SourceLocalFallback)
}

// quota returns the workspace's quota for the period in which the request came; nil = it has
// none.
func (x *exchange) quota() *limiter.Counter {
	if x.client.quota == nil {
		return nil
	}
	x.period = x.client.quota.at(x.began)
	return x.period.count
}

// fill finds a page that memory did not have, in Redis or in Postgres, as Cache-Control asks. It
// looks up a page again that was fresh before the request waited for its limit, because that page
// may be stale now.
func (x *exchange) fill() *failure {
	if x.result.Entry != nil && x.waitedForLimit() {
		x.result, _ = x.server.Cache.Hit(&x.query, x.now)
	}
	if x.result.Entry == nil {
		var err error
		switch {
		case x.control.onlyIfCached:
			x.result, err = x.server.Cache.Stored(&x.query)
		case x.control.noCache:
			x.result, err = x.server.Cache.Bypass(&x.query, x.client.usage.Queried)
		default:
			x.result, err = x.server.Cache.Forward(&x.query, x.client.usage.Queried)
		}
		x.endPhase(phaseForward)
		if err != nil {
			return lookUpFailed(&x.query, err)
		}
	}
	x.countLookUp()
	return checkMatch(x)
}

// countLookUp counts the page by where it was found.
func (x *exchange) countLookUp() {
	x.outcome = [...]metrics.Outcome{cache.Memory: metrics.OutcomeMemory, cache.Redis: metrics.OutcomeRedis, cache.Origin: metrics.OutcomeOrigin}[x.result.Source]
	if x.result.Err != nil {
		x.outcome = metrics.OutcomeStale
	}
	x.server.Metrics.LookedUp(x.outcome, x.result.Collapsed)
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

// fail answers with a problem, and logs it if it is a failure of the service.
func (x *exchange) fail(f *failure) {
	x.conn.response.writeProblem(x, f)
	x.outcome, x.failure = metrics.OutcomeError, f
	if f.problem.status == fasthttp.StatusTooManyRequests {
		x.outcome = metrics.OutcomeLimited
	}
	if f.problem.log != nil {
		f.problem.log.Do(func() {
			x.server.Logger.LogAttrs(context.Background(), slog.LevelError, "request failed", slog.String("requestId", string(x.id)),
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
	r.lines.str("X-Content-Type-Options", "nosniff")
	r.lines.bytes("X-Request-Id", x.id)
	r.passTo(&x.http.Response)
	if x.close || x.server.draining.Load() {
		r.linger = x.close
		x.http.SetConnectionClose()
	}
	x.conn.dropRequest(x.http)
	*x = exchange{scratch: x.scratch[:0]}
}

// report passes a request to metrics, usage, traces and the request log.
func (x *exchange) report() {
	status := x.conn.response.status
	took := time.Since(x.began)
	x.server.Metrics.Answered(x.route, x.outcome, status, took)
	if x.client != nil {
		x.client.usage.Answered(status, x.bodySize())
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
	if x.conn.hits++; x.conn.hits%hitsPerSample == 1 {
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
	phaseForward // Redis, the origin, or waiting for another request's fill
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
