package edge

import (
	"encoding/binary"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/metrics"
	"listedge/origin"
)

// What every page says of itself: each caches it for itself alone and asks
// before it uses it again.
const pageLines = "Cache-Control: private, no-cache\r\nVary: X-API-Key, Accept-Encoding\r\n" + noSniff

// noSniff keeps browsers from taking what a client sent, and an answer repeats,
// for anything but JSON.
const noSniff = "X-Content-Type-Options: nosniff\r\n"

// writePage leaves the page that was looked up for the connection to send.
func (s *Server) writePage(x *exchange) {
	page, a := x.page.Entry, x.conn.newAnswer(fasthttp.StatusOK)
	notModified := matchesETag(x.asked.noneMatch, page.ETag[:])
	if notModified && !x.free {
		s.returnToken(x)
	}

	a.lines = append(append(append(a.lines, "ETag: "...), page.ETag[:]...), "\r\nAge: "...)
	a.lines = append(strconv.AppendInt(a.lines, int64(x.page.Age/time.Second), 10), crlf...)
	a.lines = append(a.lines, pageLines...)
	a.add("Cache-Status", cacheStatus(&x.page))
	if page.Next != "" {
		a.lines = append(appendLink(append(a.lines, "Link: "...), &x.query, page.Next), crlf...)
	}
	s.addLimits(a, x)
	s.addTiming(a, x)
	a.add(headerRequestID, x.id)

	var deflate []byte
	if !notModified && acceptsGzip(x.asked.encoding) {
		deflate = page.Deflate()
	}
	switch {
	case notModified:
		a.status = fasthttp.StatusNotModified
		x.outcome = metrics.OutcomeNotModified
	case deflate != nil:
		a.lines = append(a.lines, "Content-Encoding: gzip\r\n"...)
		a.gzip(page, deflate, x.id)
	default:
		a.tail = appendTail(a.tail, x.id)
		a.body(page.Body, a.tail)
	}
}

// appendTail appends what makes a page's body whole: its request id, which
// needs no escaping.
func appendTail(dst, id []byte) []byte {
	dst = append(dst, `,"requestId":"`...)
	return append(append(dst, id...), `"}`...)
}

var gzipHead = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff} // deflate, no name, no time, unknown system

// gzip makes the body one gzip member: the page's deflate blocks as they are,
// the tail as a stored block, which is final, and the checksum carried on over
// it. Nothing is compressed here. (Two members, though legal, are cut off after the
// first by browsers.)
func (a *answer) gzip(page *cache.Entry, deflate, id []byte) {
	const block = 5
	a.tail = appendTail(append(a.tail, 1, 0, 0, 0, 0), id) // final, stored, with its length yet to come
	stored := a.tail[block:]
	n := uint16(len(stored)) // a request id has at most 128 bytes
	binary.LittleEndian.PutUint16(a.tail[1:], n)
	binary.LittleEndian.PutUint16(a.tail[3:], ^n)
	a.tail = binary.LittleEndian.AppendUint32(a.tail, crc32.Update(page.CRC, crc32.IEEETable, stored))
	a.tail = binary.LittleEndian.AppendUint32(a.tail, uint32(len(page.Body)+len(stored)))
	a.body(gzipHead, deflate, a.tail)
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
	case r.ByTTL && r.Source != cache.Origin:
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
