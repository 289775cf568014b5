package edge

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
)

// Header names as they are written, as bytes: set without work.
var (
	headerAge             = []byte("Age")
	headerAllow           = []byte("Allow")
	headerCacheControl    = []byte("Cache-Control")
	headerCacheStatus     = []byte("Cache-Status")
	headerContentEncoding = []byte("Content-Encoding")
	headerETag            = []byte("ETag")
	headerLink            = []byte("Link")
	headerRateLimit       = []byte("RateLimit")
	headerRateLimitPolicy = []byte("RateLimit-Policy")
	headerRequestID       = []byte("X-Request-Id")
	headerRetryAfter      = []byte("Retry-After")
	headerVary            = []byte("Vary")
	headerXLimit          = []byte("X-RateLimit-Limit")
	headerXRemaining      = []byte("X-RateLimit-Remaining")
	headerXReset          = []byte("X-RateLimit-Reset")

	headerKey           = "X-Api-Key"
	headerRequestIDName = "X-Request-Id"

	typeJSON       = []byte("application/json")
	privateNoCache = []byte("private, no-cache")
	noStore        = []byte("no-store")
	varyOn         = []byte("X-API-Key, Accept-Encoding")
	encodingGzip   = []byte("gzip")
	methodsAllowed = []byte("GET, HEAD")
)

// writePage puts the page that was looked up onto the wire.
func (s *Server) writePage(x *exchange) {
	page, answer := x.page.Page, &x.http.Response
	notModified := matchesETag(x.http.Request.Header.PeekAll(fasthttp.HeaderIfNoneMatch), page.ETag)
	if notModified {
		s.limiter.Return(x.client.bucket, x.client.workspaceBucket)
	}

	h := &answer.Header
	h.SetCanonical(headerETag, []byte(page.ETag))
	h.SetCanonical(headerCacheControl, privateNoCache)
	h.SetCanonical(headerVary, varyOn)
	x.scratch = strconv.AppendInt(x.scratch[:0], int64(x.page.Age/time.Second), 10)
	h.SetCanonical(headerAge, x.scratch)
	h.SetCanonical(headerCacheStatus, cacheStatus(&x.page))
	if page.Next != "" {
		x.scratch = appendLink(x.scratch[:0], &x.query, page.Next)
		h.SetCanonical(headerLink, x.scratch)
	}
	s.writeLimits(x)

	if notModified {
		answer.SetStatusCode(fasthttp.StatusNotModified)
		x.outcome = metrics.OutcomeNotModified
		return
	}
	h.SetContentTypeBytes(typeJSON)
	x.scratch = appendTail(x.scratch[:0], x.id)
	if page.Deflate != nil && acceptsGzip(x.http.Request.Header.PeekAll(fasthttp.HeaderAcceptEncoding)) {
		h.SetCanonical(headerContentEncoding, encodingGzip)
		writeGzip(answer, page, x.scratch)
		return
	}
	answer.AppendBody(page.Body)
	answer.AppendBody(x.scratch)
}

// appendTail appends what makes a page's body whole: its request id, which
// needs no escaping.
func appendTail(dst, id []byte) []byte {
	dst = append(dst, `,"requestId":"`...)
	return append(append(dst, id...), `"}`...)
}

var gzipHead = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff} // deflate, no name, no time, unknown system

// writeGzip writes one gzip member: the page's deflate blocks as they are, the
// tail as a stored block, which is final, and the checksum carried on over it.
// Nothing is compressed. (Two members, though legal, are cut off after the
// first by browsers.)
func writeGzip(answer *fasthttp.Response, page *cache.Page, tail []byte) {
	n := uint16(len(tail)) // a request id has at most 128 bytes
	var block [5]byte
	block[0] = 1 // final, stored
	binary.LittleEndian.PutUint16(block[1:], n)
	binary.LittleEndian.PutUint16(block[3:], ^n)
	var trailer [8]byte
	binary.LittleEndian.PutUint32(trailer[:], crc32.Update(page.CRC, crc32.IEEETable, tail))
	binary.LittleEndian.PutUint32(trailer[4:], uint32(len(page.Body)+len(tail)))
	answer.AppendBody(gzipHead)
	answer.AppendBody(page.Deflate)
	answer.AppendBody(block[:])
	answer.AppendBody(tail)
	answer.AppendBody(trailer[:])
}

// cacheStatus renders RFC 9211: whether this node's caches had the page, and
// if not, why it was fetched.
func cacheStatus(r *cache.Result) []byte {
	switch {
	case r.Err != nil:
		return statusStaleIfError
	case r.Bypassed && r.Collapsed:
		return statusBypassCollapsed
	case r.Bypassed:
		return statusBypass
	case r.ByAge && r.Source != cache.Origin:
		return statusByAge
	case r.Source == cache.Memory:
		return statusMemory
	case r.Source == cache.Redis && r.Collapsed:
		return statusRedisCollapsed
	case r.Source == cache.Redis:
		return statusRedis
	case r.HadStale && r.Collapsed:
		return statusStaleCollapsed
	case r.HadStale:
		return statusStale
	case r.Collapsed:
		return statusMissCollapsed
	}
	return statusMiss
}

var (
	statusBypass          = []byte("listedge; fwd=bypass")
	statusBypassCollapsed = []byte("listedge; fwd=bypass; collapsed")
	statusByAge           = []byte("listedge; hit; detail=ttl")
	statusMemory          = []byte("listedge; hit; detail=memory")
	statusRedis           = []byte("listedge; hit; detail=redis")
	statusRedisCollapsed  = []byte("listedge; hit; collapsed; detail=redis")
	statusMiss            = []byte("listedge; fwd=uri-miss")
	statusMissCollapsed   = []byte("listedge; fwd=uri-miss; collapsed")
	statusStale           = []byte("listedge; fwd=stale")
	statusStaleCollapsed  = []byte("listedge; fwd=stale; collapsed")
	statusStaleIfError    = []byte("listedge; fwd=stale; detail=stale-if-error")
)

// asksForTheOrigin is a request's Cache-Control: no-cache (RFC 9111, 5.2.1.4).
func asksForTheOrigin(lines [][]byte) bool {
	for _, line := range lines {
		for len(line) > 0 {
			var directive []byte
			directive, line, _ = bytes.Cut(line, []byte{','})
			if bytes.EqualFold(bytes.TrimSpace(directive), []byte("no-cache")) {
				return true
			}
		}
	}
	return false
}

// appendLink appends the address of the next page, with the parameters that
// are not at their default.
func appendLink(dst []byte, q *origin.Query, next string) []byte {
	dst = append(append(append(dst, "</v1/"...), q.Collection.String()...), '?')
	if q.Limit != defaultLimit {
		dst = append(strconv.AppendInt(append(dst, "limit="...), int64(q.Limit), 10), '&')
	}
	if q.Sort == origin.ByName {
		dst = append(dst, "sort=name&"...)
	}
	dst = append(dst, [...]string{origin.AnyStock: "", origin.Tracked: "stock=tracked&", origin.Low: "stock=low&"}[q.Stock]...)
	dst = append(dst, [...]string{origin.AnyType: "", origin.Goods: "type=goods&", origin.Services: "type=services&",
		origin.Customers: "type=customer&", origin.Suppliers: "type=supplier&"}[q.Type]...)
	if q.Search != "" {
		dst = append(fasthttp.AppendQuotedArg(append(dst, "search="...), []byte(q.Search)), '&')
	}
	return append(append(append(dst, "cursor="...), next...), `>; rel="next"`...)
}

// writeLimits tells how the buckets stand.
func (s *Server) writeLimits(x *exchange) {
	if !x.limited {
		return
	}
	c, d, h := x.client, &x.limits, &x.http.Response.Header
	h.SetCanonical(headerRateLimitPolicy, c.policy)
	if d.Source == limiter.SourceBlocked { // a rate of 0: how the other bucket stands was not asked
		s.writeBlocked(x)
		return
	}
	key := levelOf(d, limiter.Key, c.bucket)
	x.scratch = appendLevel(x.scratch[:0], "key", key)
	tightest, burst := key, c.limit
	if c.workspaceBucket != nil {
		workspace := levelOf(d, limiter.Workspace, c.workspaceBucket)
		x.scratch = appendLevel(append(x.scratch, ", "...), "workspace", workspace)
		if workspace.remaining < key.remaining || d.Refused == limiter.Workspace {
			tightest, burst = workspace, c.workspaceLimit
		}
	}
	h.SetCanonical(headerRateLimit, x.scratch)
	setInt(x, headerXLimit, burst)
	setInt(x, headerXRemaining, tightest.remaining)
	setInt(x, headerXReset, tightest.reset)
}

// writeBlocked tells of the one bucket that lets nothing pass.
func (s *Server) writeBlocked(x *exchange) {
	blocked := level{0, wholeSeconds(x.limits.RetryAfter)}
	x.scratch = appendLevel(x.scratch[:0], x.limits.Refused.String(), blocked)
	x.http.Response.Header.SetCanonical(headerRateLimit, x.scratch)
	burst := x.client.limit
	if x.limits.Refused == limiter.Workspace {
		burst = x.client.workspaceLimit
	}
	setInt(x, headerXLimit, burst)
	setInt(x, headerXRemaining, 0)
	setInt(x, headerXReset, blocked.reset)
}

// level is a bucket as headers show it: whole tokens, and seconds from now
// until it is full, or, when it refused, until there is a token.
type level struct{ remaining, reset int64 }

func levelOf(d *limiter.Decision, which limiter.Which, b *limiter.Bucket) level {
	if d.Refused == which {
		return level{0, wholeSeconds(d.RetryAfter)}
	}
	l := b.Level()
	return level{l.Remaining, int64((l.Full + time.Second - 1) / time.Second)}
}

func appendLevel(dst []byte, name string, l level) []byte {
	dst = append(append(append(dst, '"'), name...), `";r=`...)
	dst = strconv.AppendInt(dst, l.remaining, 10)
	return strconv.AppendInt(append(dst, ";t="...), l.reset, 10)
}

func setInt(x *exchange, header []byte, n int64) {
	x.scratch = strconv.AppendInt(x.scratch[:0], n, 10)
	x.http.Response.Header.SetCanonical(header, x.scratch)
}

// wholeSeconds rounds up, to at least 1: the unit of Retry-After.
func wholeSeconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

// matchesETag is If-None-Match (RFC 9110, 13.1.2): a list of entity tags,
// compared weakly, or *.
func matchesETag(lines [][]byte, etag string) bool {
	opaque := etag[len("W/"):]
	for _, line := range lines {
		for {
			line = bytes.TrimLeft(line, " \t,")
			if len(line) == 0 {
				break
			}
			if line[0] == '*' {
				return len(bytes.TrimRight(line[1:], " \t,")) == 0
			}
			line = bytes.TrimPrefix(line, []byte("W/"))
			if len(line) == 0 || line[0] != '"' {
				break // not a list of entity tags: the rest means nothing
			}
			end := bytes.IndexByte(line[1:], '"')
			if end < 0 {
				break
			}
			if string(line[:end+2]) == opaque {
				return true
			}
			line = line[end+2:]
		}
	}
	return false
}

// acceptsGzip reads Accept-Encoding (RFC 9110, 12.5.3): gzip is named, or
// covered by *, and its weight is not 0.
func acceptsGzip(lines [][]byte) bool {
	named, starred := -1, -1 // -1 = absent, 0 = refused, 1 = accepted
	for _, line := range lines {
		for len(line) > 0 {
			var item []byte
			item, line, _ = bytes.Cut(line, []byte{','})
			coding, parameters, _ := bytes.Cut(item, []byte{';'})
			accepted := 1
			if weight, ok := bytes.CutPrefix(bytes.ToLower(bytes.TrimSpace(parameters)), []byte("q=")); ok && len(bytes.Trim(weight, "0.")) == 0 {
				accepted = 0
			}
			switch coding = bytes.TrimSpace(coding); {
			case bytes.EqualFold(coding, encodingGzip), bytes.EqualFold(coding, []byte("x-gzip")):
				named = accepted
			case string(coding) == "*":
				starred = accepted
			}
		}
	}
	return named == 1 || named < 0 && starred == 1
}
