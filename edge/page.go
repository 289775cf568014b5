package edge

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/metrics"
	"listedge/origin"
	"listedge/origin/usage"
)

// lookUp looks in memory for the page, and decides what the request costs. What is not in
// memory is left to fill.
func (s *Server) lookUp(x *exchange) (f *failure) {
	x.key = appendPageKey(x.key[:0], &x.query, x.decoded[len(x.decoded):])
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
		if errors.Is(err, origin.ErrWrongServer) {
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
func fillResult(by *usage.Counter, r origin.Rows, err error) (cache.FillResult, error) {
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

// cacheStatusOf is Cache-Status (RFC 9211) without the age of the proof: whether the caches had
// the page, and if not, why it was read.
func cacheStatusOf(r *cache.Result) string {
	why := "uri-miss"
	switch {
	case r.Err != nil:
		return "listedge; fwd=stale; detail=stale-if-error"
	case r.Bypassed:
		why = "bypass"
	case r.ByTTL && r.Source != cache.Origin:
		return "listedge; hit; detail=ttl"
	case r.Source == cache.Memory:
		return "listedge; hit; detail=memory"
	case r.Source == cache.Redis && r.Collapsed:
		return "listedge; hit; collapsed; detail=redis"
	case r.Source == cache.Redis:
		return "listedge; hit; detail=redis"
	case r.HadStale:
		why = "stale"
	}
	if r.Collapsed {
		why += "; collapsed"
	}
	return "listedge; fwd=" + why
}

// appendPageKey appends the cache key of a query's page: everything the page
// depends on, and nothing else. scratch is room for parts of the key.
func appendPageKey(dst []byte, q *origin.Query, scratch []byte) []byte {
	scope := q.AppendScope(scratch)
	limit := append(scope[len(scope):], byte(q.Limit))
	return cache.AppendKey(dst, q.Workspace, scope, limit, append(limit[len(limit):], q.After...))
}

// pageLines are headers of every page: a client may store it for itself, and must
// revalidate it before each use.
const pageLines = "Cache-Control: private, no-cache\r\nVary: X-API-Key, Accept-Encoding\r\n"

// writePage makes the response of the page that was looked up.
func (s *Server) writePage(x *exchange) {
	page, r := x.result.Entry, x.conn.newResponse(fasthttp.StatusOK)
	notModified := x.cost == free || x.notModified()
	r.lines = append(append(append(r.lines, "ETag: "...), page.ETag[:]...), "\r\nAge: "...)
	r.lines = append(strconv.AppendInt(r.lines, int64(x.result.Age/time.Second), 10), crlf...)
	r.lines = append(r.lines, pageLines...)
	r.lines = append(append(append(r.lines, "Cache-Status: "...), cacheStatusOf(&x.result)...), "; proof-ms="...)
	r.lines = append(strconv.AppendInt(r.lines, int64(x.result.Age/time.Millisecond), 10), crlf...)
	if page.Next != "" {
		r.lines = append(appendLink(append(r.lines, "Link: "...), &x.query, page.Next), crlf...)
	}
	r.lines = appendLimits(r.lines, x.client, x.period, &x.decision)
	var deflate []byte
	if !notModified && acceptsGzip(x.headers.encoding) {
		deflate = page.Deflate()
	}
	switch {
	case notModified:
		r.status = fasthttp.StatusNotModified
		if !x.result.Bypassed {
			x.outcome = metrics.OutcomeNotModified
		}
	case deflate != nil:
		r.lines = append(r.lines, "Content-Encoding: gzip\r\n"...)
		r.setGzip(page, deflate, x.id)
	default:
		r.tail = appendTail(r.tail, x.id)
		r.entry = page
		r.setBody(r.tail)
	}
}

// appendTail appends the end of a page's body: the request id, which needs no
// escaping.
func appendTail(dst, id []byte) []byte {
	dst = append(dst, `,"requestId":"`...)
	return append(append(dst, id...), `"}`...)
}

var gzipHead = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff} // deflate, no name, no time, unknown system

// setGzip makes the body one gzip member: the entry's deflate blocks, the tail as
// a stored block, which is final, and the checksum continued over it. Nothing is
// compressed here. (Two members would be valid, but browsers read only the first.)
func (r *response) setGzip(page *cache.Entry, deflate, id []byte) {
	const block = 5
	r.tail = appendTail(append(r.tail, 1, 0, 0, 0, 0), id) // final, stored; its length follows below
	stored := r.tail[block:]
	n := uint16(len(stored)) // a request id has at most 128 bytes
	binary.LittleEndian.PutUint16(r.tail[1:], n)
	binary.LittleEndian.PutUint16(r.tail[3:], ^n)
	r.tail = binary.LittleEndian.AppendUint32(r.tail, crc32.Update(page.CRC, crc32.IEEETable, stored))
	r.tail = binary.LittleEndian.AppendUint32(r.tail, uint32(page.Size+len(stored)))
	r.setBody(gzipHead, deflate, r.tail)
}

// appendLink appends the address of the next page, with the parameters that differ from
// their defaults. It is relative to the page's own address, of which a proxy in
// front may have removed a prefix.
func appendLink(dst []byte, q *origin.Query, next string) []byte {
	dst = append(dst, "<?"...)
	if q.Limit != defaultLimit {
		dst = append(strconv.AppendInt(append(dst, "limit="...), int64(q.Limit), 10), '&')
	}
	if q.Sort != q.Collection.Orders()[0] {
		dst = append(append(append(dst, "sort="...), q.Sort.String()...), '&')
	}
	for _, f := range q.Collection.Filters() {
		for _, v := range f.Values {
			if q.Filter&v.Flag != 0 {
				dst = append(append(append(append(dst, f.Parameter...), '='), v.Name...), '&')
			}
		}
	}
	if q.Search != "" {
		term := append(make([]byte, 0, 4*maxSearch), q.Search...) // on the stack
		dst = append(fasthttp.AppendQuotedArg(append(dst, "search="...), term), '&')
	}
	return append(append(append(dst, "cursor="...), next...), `>; rel="next"`...)
}

// writeProblem answers with a problem, and logs it if it is a failure of the service.
func (s *Server) writeProblem(x *exchange, f *failure) {
	r := x.conn.newResponse(f.problem.status)
	r.lines = append(r.lines, "Cache-Control: no-store\r\n"...)
	if status := f.problem.status; status == fasthttp.StatusTooManyRequests || status == fasthttp.StatusServiceUnavailable {
		r.lines = append(strconv.AppendInt(append(r.lines, "Retry-After: "...), max(retrySoon, f.retry), 10), crlf...)
	}
	if f.problem == wrongMethod {
		r.lines = append(r.lines, "Allow: GET, HEAD\r\n"...)
	}
	if x.cost != notLimited {
		r.lines = appendLimits(r.lines, x.client, x.period, &x.decision)
	}
	r.setBody(problemBody(f, x.id))
	x.outcome, x.failure = metrics.OutcomeError, f
	if f.problem.status == fasthttp.StatusTooManyRequests {
		x.outcome = metrics.OutcomeLimited
	}
	if f.problem.log != nil {
		f.problem.log.Do(func() {
			s.Logger.LogAttrs(context.Background(), slog.LevelError, "request failed", slog.String("requestId", string(x.id)),
				slog.String("route", x.route.String()), slog.Int("status", f.problem.status), slog.Any("error", f.cause))
		})
	}
}

// view is a query as the cache wants it (cache.View), with memory of its own, because a fill
// may outlive the request that began it. It depends on each field of the query: see
// TestEachFieldOfAQueryIsHandled.
type view struct {
	origin.Query
	key  []byte
	list replica.Key
}

func viewOf(q origin.Query) *view {
	v := &view{Query: q.Clone(), key: appendPageKey(nil, &q, nil)}
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
