package edge

import (
	"bytes"
	"encoding/binary"

	"github.com/valyala/fasthttp"

	"listedge/limiter"
)

// checkHead refuses requests that fasthttp takes and that are not plainly
// valid: a proxy in front might take them for others. It also splits the target.
func (s *Server) checkHead(x *exchange) failure {
	h := &x.http.Request.Header
	switch version := h.Protocol(); { // fasthttp lets in a digit, a dot and a digit
	case string(version) == "HTTP/1.1", string(version) == "HTTP/1.0":
	case bytes.HasPrefix(version, []byte("HTTP/0.")):
		return s.refuse(x, badRequest)
	default:
		return s.refuse(x, wrongVersion)
	}
	var ok bool
	x.path, x.parameters, ok = splitTarget(h.RequestURI())
	switch {
	case !ok, x.asked.spaced, !isHost(h.Host()), x.conn.lines.encoding && !plainEncoding(h):
		return s.refuse(x, badRequest)
	case x.asked.count > maxHeaders:
		return s.refuse(x, headTooLarge)
	case h.ContentLength() > refusedBody:
		return s.refuse(x, bodyTooLarge)
	}
	return failure{}
}

// refuse ends the connection with the request: where the next one begins is
// not certain.
func (s *Server) refuse(x *exchange, p *problem) failure {
	x.last = true
	return failure{problem: p}
}

// splitTarget splits a request's target at its question mark, and takes scheme
// and authority off an absolute one (RFC 9112, 3.2). It is taken as it was sent:
// fasthttp would drop what follows a number sign, and resolve dot segments.
func splitTarget(target []byte) (path, parameters []byte, ok bool) {
	if !isASCII(target) || bytes.IndexByte(target, '#') >= 0 { // fasthttp lets no control character in
		return nil, nil, false
	}
	if target[0] != '/' {
		scheme, rest, absolute := bytes.Cut(target, []byte("://"))
		if !absolute {
			return target, nil, string(target) == "*" // of OPTIONS, for fasthttp lets no other have it
		}
		end := bytes.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		http := bytes.EqualFold(scheme, []byte("http")) || bytes.EqualFold(scheme, []byte("https"))
		if !http || end == 0 || !isHost(rest[:end]) {
			return nil, nil, false
		}
		target = rest[end:]
	}
	path, parameters, _ = bytes.Cut(target, []byte{'?'})
	return path, parameters, true
}

func isASCII(p []byte) bool {
	var all uint64
	for ; len(p) >= 8; p = p[8:] {
		all |= binary.LittleEndian.Uint64(p)
	}
	for _, c := range p {
		all |= uint64(c)
	}
	return all&0x8080_8080_8080_8080 == 0
}

// isHost says whether the text consists of what a host and a port do (RFC 3986,
// 3.2.2); userinfo has an @.
func isHost(text []byte) bool {
	for _, c := range text {
		if !hostBytes[c] {
			return false
		}
	}
	return true
}

var hostBytes = func() (is [256]bool) {
	for _, c := range "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-._~%!$&'()*+,;=:[]" {
		is[c] = true
	}
	return is
}()

// plainEncoding says whether the body, if there is a Transfer-Encoding, is
// chunked, and its length is told by that alone.
func plainEncoding(h *fasthttp.RequestHeader) bool {
	encoded, sized := false, false
	for name, value := range h.AllInOrder() {
		switch string(name) {
		case fasthttp.HeaderTransferEncoding:
			if encoded = true; !bytes.EqualFold(value, []byte("chunked")) {
				return false
			}
		case fasthttp.HeaderContentLength:
			sized = true
		}
	}
	return !encoded || !sized
}

// asked are the headers of a request that matter here, a value per line, as
// they were sent. Valid as long as what they were read from. One pass over all
// headers costs what fasthttp's PeekAll takes for one of them.
type asked struct {
	key, id, match, noneMatch, encoding, control, forwarded, traceParent, traceState [][]byte

	count        int  // of headers
	bulky        bool // fasthttp makes more of one than it is long
	spaced       bool // a name has a space in it, for fasthttp lets it in
	forwardedFor bool // X-Forwarded-For or Forwarded is there
}

func (a *asked) read(h *fasthttp.RequestHeader) {
	a.key, a.id, a.noneMatch, a.encoding, a.control = a.key[:0], a.id[:0], a.noneMatch[:0], a.encoding[:0], a.control[:0]
	a.match, a.spaced = a.match[:0], false
	a.forwarded, a.traceParent, a.traceState = a.forwarded[:0], a.traceParent[:0], a.traceState[:0]
	a.forwardedFor, a.count, a.bulky = false, 0, false
	for name, value := range h.All() {
		a.count++
		switch string(name) { // as fasthttp normalises them
		case "X-Api-Key":
			a.key = append(a.key, value)
		case "X-Request-Id":
			a.id = append(a.id, value)
		case "If-Match":
			a.match = append(a.match, value)
		case "If-None-Match":
			a.noneMatch = append(a.noneMatch, value)
		case "Accept-Encoding":
			a.encoding = append(a.encoding, value)
		case "Cache-Control":
			a.control = append(a.control, value)
		case "X-Forwarded-For":
			a.forwarded = append(a.forwarded, value)
			a.forwardedFor = true
		case "Forwarded": // only as a sign of a proxy
			a.forwardedFor = true
		case "Traceparent":
			a.traceParent = append(a.traceParent, value)
		case "Tracestate":
			a.traceState = append(a.traceState, value)
		case "Cookie", "Trailer":
			a.bulky = true
		default:
			a.spaced = a.spaced || bytes.IndexByte(name, ' ') >= 0
		}
	}
}

// acceptsGzip reads Accept-Encoding (RFC 9110, 12.5.3): gzip is acceptable, and
// identity is not preferred to it. What is not named has the weight of *; an
// identity that neither names is acceptable, and preferred to nothing.
func acceptsGzip(lines [][]byte) bool {
	gzip, identity, others := -1, -1, -1 // thousandths; -1 = not named
	for _, line := range lines {
		for len(line) > 0 {
			var item []byte
			item, line, _ = bytes.Cut(line, []byte{','})
			coding, parameters, _ := bytes.Cut(item, []byte{';'})
			switch coding = bytes.TrimSpace(coding); {
			case bytes.EqualFold(coding, []byte("gzip")), bytes.EqualFold(coding, []byte("x-gzip")):
				gzip = max(gzip, weight(parameters))
			case bytes.EqualFold(coding, []byte("identity")):
				identity = weight(parameters)
			case string(coding) == "*":
				others = weight(parameters)
			}
		}
	}
	if gzip < 0 {
		gzip = others
	}
	if identity < 0 {
		identity = others
	}
	return gzip > 0 && gzip >= identity
}

// weight is the q of an item's parameters, in thousandths. One that is not
// valid counts as absent, which is 1.
func weight(parameters []byte) int {
	for len(parameters) > 0 {
		var p []byte
		p, parameters, _ = bytes.Cut(parameters, []byte{';'})
		name, value, _ := bytes.Cut(bytes.TrimSpace(p), []byte{'='})
		if bytes.EqualFold(name, []byte("q")) {
			return thousandths(value)
		}
	}
	return 1000
}

// thousandths reads a qvalue: 0 or 1, and up to three decimals.
func thousandths(text []byte) int {
	whole, decimals, _ := bytes.Cut(text, []byte{'.'})
	if len(decimals) > 3 || string(whole) != "0" && string(whole) != "1" {
		return 1000
	}
	n := int(whole[0] - '0')
	for i := range 3 {
		n *= 10
		if i < len(decimals) {
			if decimals[i] < '0' || decimals[i] > '9' {
				return 1000
			}
			n += int(decimals[i] - '0')
		}
	}
	return min(n, 1000)
}

// checkMatch is If-Match (RFC 9110, 13.1.1), which compares strongly: the weak
// ETag of a page matches no tag, and only * is met, by every page. It comes
// before If-None-Match, and does not count where there is no page.
// If-Unmodified-Since and If-Modified-Since must be ignored (13.1.4, 13.1.3),
// for a page has no modification date.
func (s *Server) checkMatch(x *exchange) failure {
	if lines := x.asked.match; len(lines) == 0 || len(lines) == 1 && string(bytes.TrimSpace(lines[0])) == "*" {
		return failure{}
	}
	s.returnToken(x)
	return failure{problem: mismatch}
}

// revalidate finds out whether memory answers 304, which costs no token: before one
// is taken, so that many such requests at once do not refuse one another. A request
// with a cursor may cost a query for the page after, and a rate of 0 admits nothing.
func (s *Server) revalidate(x *exchange) bool {
	if len(x.asked.noneMatch) == 0 || len(x.asked.match) > 0 || parseCacheControl(x.asked.control).noCache {
		return false
	}
	q := x.query
	if s.parse(x).problem != nil || x.query.After.Set {
		x.query = q
		return false
	}
	x.key = appendPageKey(x.key[:0], &x.query, x.scratch[:0])
	x.page, x.found = s.cache.Hit(&x.client.spot, x.key, x.now)
	limits := limiter.Decision{}
	if x.found && x.page.Local && matchesETag(x.asked.noneMatch, x.page.Entry.ETag[:]) {
		limits = s.limiter.Peek(x.now, x.client.bucket, x.client.workspaceBucket)
	}
	if !limits.Allowed {
		x.query = q
		return false
	}
	s.countLookUp(x)
	x.free, x.limited, x.limits = true, true, limits
	return true
}

// matchesETag is If-None-Match (RFC 9110, 13.1.2): a list of entity tags,
// compared weakly, or *.
func matchesETag(lines [][]byte, etag []byte) bool {
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
			if bytes.Equal(line[:end+2], opaque) {
				return true
			}
			line = line[end+2:]
		}
	}
	return false
}

// cacheControl are the directives of a request's Cache-Control that count here
// (RFC 9111, 5.2.1).
type cacheControl struct{ noCache, onlyIfCached bool }

func parseCacheControl(lines [][]byte) (c cacheControl) {
	for _, line := range lines {
		for len(line) > 0 {
			var directive []byte
			directive, line, _ = bytes.Cut(line, []byte{','})
			directive = bytes.TrimSpace(directive)
			c.noCache = c.noCache || bytes.EqualFold(directive, []byte("no-cache"))
			c.onlyIfCached = c.onlyIfCached || bytes.EqualFold(directive, []byte("only-if-cached"))
		}
	}
	return c
}
