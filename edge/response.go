package edge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"

	"listedge/cache"
	"listedge/internal/page"
	"listedge/limiter"
)

// header is the lines of a response's headers. Names and values have no line end: they are
// constant, or were checked.
type header []byte

// begin begins a header, to which put and putNum add, and which end ends.
func (h *header) begin(name string) { h.put(name).put(": ") }

func (h *header) put(text string) *header {
	*h = append(*h, text...)
	return h
}

func (h *header) putNum(n int64) { *h = strconv.AppendInt(*h, n, 10) }

func (h *header) end() { *h = append(*h, crlf...) }

// str adds a header that is a text.
func (h *header) str(name, value string) {
	b := append(*h, name...) // through the pointer, each append would store
	b = append(b, ": "...)
	b = append(b, value...)
	*h = append(b, "\r\n"...)
}

// num adds a header that is a whole number.
func (h *header) num(name string, n int64) {
	b := append(*h, name...)
	b = strconv.AppendInt(append(b, ": "...), n, 10)
	*h = append(b, "\r\n"...)
}

// value returns the value of a header that was added behind another one; nil = none was.
func (h header) value(name string) []byte {
	_, value, _ := bytes.Cut(h, []byte("\r\n"+name+": "))
	value, _, _ = bytes.Cut(value, crlf)
	return value
}

// item begins an item of RateLimit-Policy or of RateLimit, up to its first number.
func (h *header) item(name, parameter string, n int64) {
	b := append(*h, '"')
	b = append(b, name...)
	b = append(b, `";`...)
	b = append(b, parameter...)
	*h = strconv.AppendInt(append(b, '='), n, 10)
}

// policy renders an item of RateLimit-Policy: q tokens in a window of the w seconds
// that an empty bucket takes to fill, rounded up, and the rate in tokens a second. q/w is
// not the rate if the bucket fills in less than a second. With rate 0 it never fills. A
// decimal of HTTP has at most three digits after the point (RFC 9651, 4.1.5).
func (h *header) policy(name string, p limiter.Policy) {
	if p.Rate == 0 {
		h.item(name, "q", 0)
		return
	}
	h.item(name, "q", p.Burst)
	h.put(";w=")
	h.putNum((p.TimeFor(p.Units()) + 999_999) / 1_000_000)
	if thousandths := (p.Rate + 500) / 1000; thousandths > 0 {
		h.put(";rate=")
		*h = strconv.AppendFloat(*h, float64(thousandths)/1000, 'f', -1, 64)
	}
}

// status renders an item of RateLimit: the tokens left in a bucket and the seconds
// until there is one more, or the requests left in a quota and the seconds until it ends.
func (h *header) status(name string, s *limiter.Status) {
	h.item(name, "r", s.Remaining)
	h.put(";t=")
	h.putNum(upToSecond(s.ResetIn))
}

// limits renders the limit headers of what the client was granted.
func (h *header) limits(c *client, g *grant) {
	d := &g.decision
	h.begin("RateLimit-Policy")
	h.put(c.policy.Value())
	if g.period != nil {
		h.put(", ").put(g.period.policy)
	}
	h.end()
	h.begin("RateLimit")
	tightest, burst := &d.Key, c.limit // the bucket that the X-RateLimit headers describe
	switch {
	case d.Source == limiter.SourceBlocked: // a rate of 0: the other buckets have no status
		burst = 0
		if d.Refused == limiter.Workspace {
			tightest = &d.Workspace
		}
		h.status(d.Refused.String(), tightest)
	default:
		h.status("key", &d.Key)
		if c.workspaceBucket != nil {
			h.put(", ")
			h.status("workspace", &d.Workspace)
			if d.Workspace.Remaining < d.Key.Remaining || d.Refused == limiter.Workspace {
				tightest, burst = &d.Workspace, c.workspaceLimit
			}
		}
		if g.period != nil {
			h.put(", ")
			h.status("quota", &d.Quota)
			if d.Quota.Remaining < tightest.Remaining || d.Refused == limiter.Quota {
				tightest, burst = &d.Quota, c.quota.Requests
			}
		}
	}
	h.end()
	h.num("X-RateLimit-Limit", burst)
	h.num("X-RateLimit-Remaining", tightest.Remaining)
	reset := upToSecond(tightest.ResetIn)
	if d.Refused != limiter.NoLimit {
		reset = wholeSeconds(d.RetryAfter)
	}
	h.num("X-RateLimit-Reset", reset)
}

func upToSecond(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// wholeSeconds rounds up to whole seconds, at least 1, as Retry-After has them.
func wholeSeconds(d time.Duration) int64 { return max(1, upToSecond(d)) }

// link renders the address of another page of the query, with a relation and the parameters that differ from
// their defaults. It is relative to the page's own address, of which a proxy in
// front may have removed a prefix.
func (h *header) link(q *page.Query, next, rel string) {
	h.put("<?")
	if q.Limit != defaultLimit {
		h.put("limit=")
		h.putNum(int64(q.Limit))
		h.put("&")
	}
	if q.Order != 0 {
		h.put("sort=").put(q.List.Orders[q.Order].Name).put("&")
	}
	for i := range q.List.Filters {
		f := &q.List.Filters[i]
		for j := range f.Values {
			if q.Match&f.Values[j].Bit != 0 {
				h.put(f.Name).put("=").put(f.Values[j].Name).put("&")
			}
		}
	}
	if q.Search != "" {
		term := append(make([]byte, 0, 4*maxSearch), q.Search...) // on the stack
		h.put("search=")
		*h = fasthttp.AppendQuotedArg(*h, term)
		h.put("&")
	}
	h.put("cursor=").put(next).put(`>; rel="`).put(rel).put(`"`)
}

// found adds the headers that say how old a page is, on what it depends, and where it was found.
func (h *header) found(r *cache.Result) {
	h.num("Age", int64(r.Age/time.Second))
	h.put("Vary: X-API-Key, Accept-Encoding\r\nCache-Status: ").put(cacheStatusOf(r)).put("; proof-ms=")
	h.putNum(int64(r.Age / time.Millisecond))
	h.end()
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

// response is what a handler leaves for its connection to send: header lines, and a body
// in pieces, which are copied once. fasthttp would check and copy each header, and copy the
// body twice. Instead, fasthttp gets the response as a body stream, before which it flushes its
// own headers:
//
//	fasthttp:  status, date, type, length, connection ──Flush──► Write: held
//	           WriteTo (not for HEAD and 304) ─────────────────► the body is wanted
//	           Close ──────────────────────────────► headers, lines, body: one write
//
// That takes 1 µs off a hit, and 2.5 µs off one of 20 kB. It relies on how
// fasthttp writes a stream, so TestFasthttpsVersion pins the version that was
// read. A response belongs to its connection, and its pieces must not change
// before Close.
type response struct {
	conn    *conn
	status  int
	kind    string // Content-Type
	lines   header
	entry   *cache.Entry // the body begins with the entry's; nil = it is the pieces alone
	pieces  [3][]byte
	tail    []byte // the last piece, if only this response has it
	size    int    // of the whole body, in bytes
	pending bool   // from start to Close
	body    bool   // the body is to be sent: not for HEAD and 304
	linger  bool   // the client may still be sending: see linger

	head []byte // what fasthttp wrote, held back: its headers, in parts if its buffer was nearly full
}

var crlf = []byte("\r\n")

// writeBuffer is the size of fasthttp's buffer, in bytes: more than a response's headers. Bodies
// bypass it.
const writeBuffer = 4 << 10

// start begins a response with this status, no lines and no body.
func (r *response) start(status int) *response {
	r.status, r.kind, r.pending = status, "application/json", true
	r.lines, r.tail, r.entry, r.pieces, r.size = r.lines[:0], r.tail[:0], nil, [3][]byte{}, 0
	return r
}

// setBody sets the whole body, or what it has behind the body of r.entry.
func (r *response) setBody(pieces ...[]byte) {
	if r.entry != nil {
		r.size = r.entry.Size
	}
	for i, p := range pieces {
		r.pieces[i] = p
		r.size += len(p)
	}
}

// setPage makes the body a page, followed by the request id.
func (r *response) setPage(entry *cache.Entry, id []byte) {
	r.appendTail(id)
	r.entry = entry
	r.setBody(r.tail)
}

// appendTail appends the end of a page's body to the tail.
func (r *response) appendTail(id []byte) { r.tail = appendRequestID(r.tail, id) }

// appendRequestID appends the end of a page's body: the request id, which needs no escaping.
func appendRequestID(b, id []byte) []byte {
	b = append(b, `,"requestId":"`...)
	b = append(b, id...)
	return append(b, `"}`...)
}

var gzipHead = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff} // deflate, no name, no time, unknown system

// setGzip makes the body one gzip member: the entry's deflate blocks, the tail as
// a stored block, which is final, and the checksum continued over it. Nothing is
// compressed here. (Two members would be valid, but browsers read only the first.)
func (r *response) setGzip(entry *cache.Entry, deflate, id []byte) {
	r.lines.str("Content-Encoding", "gzip")
	const block = 5
	r.tail = append(r.tail, 1, 0, 0, 0, 0) // final, stored; its length follows below
	r.appendTail(id)
	stored := r.tail[block:]
	n := uint16(len(stored)) // a request id has at most 128 bytes
	binary.LittleEndian.PutUint16(r.tail[1:], n)
	binary.LittleEndian.PutUint16(r.tail[3:], ^n)
	r.tail = binary.LittleEndian.AppendUint32(r.tail, crc32.Update(entry.CRC, crc32.IEEETable, stored))
	r.tail = binary.LittleEndian.AppendUint32(r.tail, uint32(entry.Size+len(stored)))
	r.setBody(gzipHead, deflate, r.tail)
}

// writePage makes the response of the page that was found for the query.
func (r *response) writePage(x *exchange, q *page.Query) {
	entry := x.result.Entry
	r.start(fasthttp.StatusOK)
	h := &r.lines
	h.begin("ETag")
	*h = append(*h, entry.ETag[:]...)
	h.end()
	h.str("Cache-Control", "private, no-cache") // a client may store the page for itself, and must revalidate it before each use
	h.found(&x.result)
	if entry.Next != "" {
		h.begin("Link")
		h.link(q, entry.Next, "next")
		h.end()
	}
	h.limits(x.caller.client, &x.grant)
	if x.grant.cost == free || x.has(entry) {
		r.status = fasthttp.StatusNotModified
		return
	}
	var deflate []byte
	if acceptsGzip(x.headers.encoding) {
		deflate = entry.Deflate()
	}
	if deflate != nil {
		r.setGzip(entry, deflate, x.id)
	} else {
		r.setPage(entry, x.id)
	}
}

// retrySoon is the Retry-After of a 503, in seconds: the node tries a server that is
// down again after about a second.
const retrySoon = 1

// writeProblem makes the response of a problem.
func (r *response) writeProblem(x *exchange, f *failure) {
	r.start(f.problem.status)
	r.lines.str("Cache-Control", "no-store")
	if status := f.problem.status; status == fasthttp.StatusTooManyRequests || status == fasthttp.StatusServiceUnavailable {
		r.lines.num("Retry-After", max(retrySoon, f.retry))
	}
	if f.problem == wrongMethod {
		r.lines.str("Allow", "GET, HEAD")
	}
	if x.grant.cost != notLimited {
		r.lines.limits(x.caller.client, &x.grant)
	}
	r.setBody(problemBody(f, x.id))
}

// problemBody returns the body of an error response.
func problemBody(f *failure, id []byte) []byte {
	type inner struct {
		Code    string  `json:"code"`
		Message string  `json:"message"`
		Details details `json:"details,omitempty"`
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	must(0, encoder.Encode(struct {
		Error     inner  `json:"error"`
		RequestID string `json:"requestId"`
	}{inner{f.problem.code, cmp.Or(f.message, f.problem.message), f.details}, string(id)}))
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}

// passTo makes fasthttp send the response when the handler has returned.
func (r *response) passTo(to *fasthttp.Response) {
	to.SetStatusCode(r.status)
	if r.status != fasthttp.StatusNotModified {
		to.Header.SetContentType(r.kind)
	}
	to.SetBodyStream(r, r.size)
	to.ImmediateHeaderFlush = true
}

// SupportsBodyWriteTo makes fasthttp call WriteTo.
func (r *response) SupportsBodyWriteTo() bool { return true }

// WriteTo remembers that Close must send the body.
func (r *response) WriteTo(io.Writer) (int64, error) {
	r.body = true
	return int64(r.size), nil
}

func (r *response) Read([]byte) (int, error) { return 0, errors.New("BUG: a response is not read") }

// Close sends the response, or drops it if fasthttp did not write it.
func (r *response) Close() (err error) {
	if len(r.head) > 0 {
		err = r.send()
		if err == nil && r.linger {
			linger(r.conn.Conn)
		}
	}
	r.pending, r.body, r.linger, r.head = false, false, false, r.head[:0]
	r.entry, r.pieces = nil, [len(r.pieces)][]byte{} // an idle connection keeps no page
	return err
}

// maxCopied is how many bytes are collected before a call sends them: a slow client keeps the
// copy for long.
const maxCopied = 60 << 10

// outgoing are buffers in which responses are put together to be sent.
var outgoing = sync.Pool{New: func() any { return new([]byte) }}

// send writes the response to the connection: fasthttp's headers, then lines, then the body,
// mostly by one call.
func (r *response) send() (err error) {
	out := outgoing.Get().(*[]byte)
	b := append((*out)[:0], r.head[:len(r.head)-len(crlf)]...)
	b = append(b, r.lines...)
	b = append(b, crlf...)
	for next := 0; r.body && r.entry != nil && next >= 0 && err == nil; {
		b, next = r.entry.AppendBody(b, next, maxCopied)
		if next >= 0 {
			_, err = r.conn.Conn.Write(b)
			b = b[:0]
		}
	}
	for _, p := range r.pieces {
		switch {
		case !r.body || err != nil:
		case len(b)+len(p) <= maxCopied:
			b = append(b, p...)
		default: // a document
			_, err = r.conn.Conn.Write(b)
			if err == nil {
				_, err = r.conn.Conn.Write(p)
			}
			b = b[:0]
		}
	}
	if err == nil && len(b) > 0 {
		_, err = r.conn.Conn.Write(b)
	}
	if cap(b) <= 2*maxCopied {
		*out = b
		outgoing.Put(out)
	}
	return err
}

// problem is a kind of error response. Only this file gives errors their code, status
// and message.
type problem struct {
	code    string
	status  int
	message string
	log     *rate.Sometimes // how often it is logged, as a failure of the service; nil = never: it is the client's
}

// failure is why a request ends with a problem. A nil *failure is none.
type failure struct {
	problem *problem
	message string  // for the client alone, because it may repeat what the client sent; "" = the problem's
	details details // for the client alone; nil = none
	retry   int64   // Retry-After in seconds; 0 = none
	cause   error   // for the log
}

// onceASecond logs a problem at most once a second: in an outage, every request fails.
func onceASecond() *rate.Sometimes { return &rate.Sometimes{Interval: time.Second} }

var (
	badRequest      = &problem{"REQUEST_FAILED", 400, "The request could not be read.", nil}
	notEncoded      = &problem{"REQUEST_FAILED", 400, "The address has characters that must be percent-encoded.", nil}
	wrongMethod     = &problem{"REQUEST_FAILED", 405, "Only GET and HEAD are supported here.", nil}
	tooSlow         = &problem{"REQUEST_FAILED", 408, "The request took too long to arrive.", nil}
	etagMismatch    = &problem{"REQUEST_FAILED", 412, "The page does not match If-Match; only * does.", nil}
	bodyTooLarge    = &problem{"REQUEST_FAILED", 413, "A list request has no body.", nil}
	headersTooLarge = &problem{"REQUEST_FAILED", 431, "The request's header is too large: it may have 16 KiB and 100 lines.", nil}
	invalid         = &problem{"VALIDATION_ERROR", 400, "Some parameters are not valid.", nil}
	keyMissing      = &problem{"UNAUTHORIZED", 401, "Send your API key in the X-API-Key header, once.", nil}
	keyMalformed    = &problem{"UNAUTHORIZED", 401, "This is not an API key; look for a typing error.", nil}
	keyRefused      = &problem{"UNAUTHORIZED", 401, "This API key is not valid.", nil}
	scopeMissing    = &problem{"FORBIDDEN", 403, "This API key may not read this list.", nil}
	suspended       = &problem{"FORBIDDEN", 403, "This workspace is suspended.", nil}
	notFound        = &problem{"NOT_FOUND", 404, "There is nothing at this address; /openapi.json says what there is.", nil}
	rateLimited     = &problem{"RATE_LIMITED", 429, "Too many requests; wait as long as Retry-After says.", nil}
	quotaReached    = &problem{"PLAN_LIMIT_REACHED", 429, "The quota of this workspace is used up; wait as long as Retry-After says.", nil}
	authLimited     = &problem{"RATE_LIMITED", 429, "Too many requests with invalid API keys; wait as long as Retry-After says.", nil}
	noKeyLimited    = &problem{"RATE_LIMITED", 429, "Too many requests that need no API key; wait as long as Retry-After says.", nil}
	keysDown        = &problem{"SERVICE_UNAVAILABLE", 503, "API keys cannot be checked at the moment.", onceASecond()}
	originDown      = &problem{"SERVICE_UNAVAILABLE", 503, "The database cannot be reached at the moment.", onceASecond()}
	originClosed    = &problem{"SERVICE_UNAVAILABLE", 503, "This list cannot be read at the moment.", onceASecond()}
	originBusy      = &problem{"SERVICE_UNAVAILABLE", 503, "Too many queries are waiting; try again shortly.", onceASecond()}
	originSlow      = &problem{"SERVICE_UNAVAILABLE", 503, "The database took too long to answer.", onceASecond()}
	searchSlow      = &problem{"SERVICE_UNAVAILABLE", 503, "The search took too long, and may do so again; search for a longer text.", onceASecond()}
	unproven        = &problem{"SERVICE_UNAVAILABLE", 503, "It is not proven now that all changes are known; repeat the request with the same cursor.",
		onceASecond()}
	tooManyConns  = &problem{"SERVICE_UNAVAILABLE", 503, "Too many connections.", onceASecond()}
	notStored     = &problem{"REQUEST_FAILED", 504, "No usable page is stored, and only-if-cached forbids reading the database.", nil}
	wrongVersion  = &problem{"REQUEST_FAILED", 505, "This version of HTTP is not supported; use HTTP/1.1.", nil}
	internalError = &problem{"INTERNAL_ERROR", 500, "Something went wrong on our side; the request id helps us to find it.", &rate.Sometimes{Every: 1}}
)

// lookUpFailed returns the failure for a page of the query that could not be looked up.
func lookUpFailed(q *page.Query, err error) *failure {
	f := &failure{problem: internalError, retry: retrySoon, cause: err}
	switch {
	case errors.Is(err, cache.ErrNotStored):
		f.problem = notStored
	case errors.Is(err, cache.ErrUnproven):
		f.problem = unproven
	case errors.Is(err, page.ErrOverloaded):
		f.problem = originBusy
	case errors.Is(err, page.ErrTimeout), errors.Is(err, cache.ErrFillTimeout), errors.Is(err, context.DeadlineExceeded):
		f.problem = originSlow
		if q.Search != "" {
			f.problem = searchSlow
		}
	case errors.Is(err, page.ErrUnavailable), errors.Is(err, context.Canceled):
		f.problem = originDown
	case errors.Is(err, page.ErrNotAllowed), errors.Is(err, page.ErrSchema): // a grant or a table is missing; for the client it is an outage
		f.problem = originClosed
	}
	return f
}

// unreadableProblem returns the problem for a request that fasthttp could not read.
func unreadableProblem(err error) *problem {
	var small *fasthttp.ErrSmallBuffer
	var network net.Error
	switch {
	case errors.As(err, &small):
		return headersTooLarge
	case errors.As(err, &network) && network.Timeout():
		return tooSlow
	}
	return badRequest
}
