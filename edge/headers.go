package edge

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"
)

// requestHeaders are the headers of a request that this service reads, one value per
// line, as they were sent. They are valid as long as the request. They are read in one
// pass over all headers, which costs as much as one PeekAll of fasthttp.
type requestHeaders struct {
	key, id, match, noneMatch, encoding, control, forwarded, traceParent, traceState [][]byte

	count       int  // of headers
	expands     bool // a header for which fasthttp may allocate more memory than its length
	spaceInName bool // a header's name has a space, which fasthttp allows
	isForwarded bool // X-Forwarded-For or Forwarded is present
}

func (r *requestHeaders) read(h *fasthttp.RequestHeader) {
	*r = requestHeaders{key: r.key[:0], id: r.id[:0], match: r.match[:0], noneMatch: r.noneMatch[:0], encoding: r.encoding[:0],
		control: r.control[:0], forwarded: r.forwarded[:0], traceParent: r.traceParent[:0], traceState: r.traceState[:0]}
	for name, value := range h.All() {
		r.count++
		switch string(name) { // as fasthttp normalises them
		case "X-Api-Key":
			r.key = append(r.key, value)
		case "X-Request-Id":
			r.id = append(r.id, value)
		case "If-Match":
			r.match = append(r.match, value)
		case "If-None-Match":
			r.noneMatch = append(r.noneMatch, value)
		case "Accept-Encoding":
			r.encoding = append(r.encoding, value)
		case "Cache-Control":
			r.control = append(r.control, value)
		case "X-Forwarded-For":
			r.forwarded = append(r.forwarded, value)
			r.isForwarded = true
		case "Forwarded": // its value is not read
			r.isForwarded = true
		case "Traceparent":
			r.traceParent = append(r.traceParent, value)
		case "Tracestate":
			r.traceState = append(r.traceState, value)
		case "Cookie", "Trailer":
			r.expands = true
		default:
			r.spaceInName = r.spaceInName || bytes.IndexByte(name, ' ') >= 0
		}
	}
}

// splitTarget splits a request's target at its question mark, and removes scheme and
// authority from an absolute target (RFC 9112, 3.2). It replaces fasthttp's parser,
// which drops the text behind a number sign and resolves dot segments.
func splitTarget(target []byte) (path, query []byte, p *problem) {
	for _, c := range target { // fasthttp allows no control characters
		if c >= 0x80 || c == '#' {
			return nil, nil, notEncoded
		}
	}
	if target[0] != '/' {
		scheme, rest, absolute := bytes.Cut(target, []byte("://"))
		if string(target) == "*" { // fasthttp allows it for OPTIONS only
			return target, nil, nil
		}
		end := bytes.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		http := absolute && (bytes.EqualFold(scheme, []byte("http")) || bytes.EqualFold(scheme, []byte("https")))
		if !http || end == 0 || !isHost(rest[:end]) {
			return nil, nil, badRequest
		}
		target = rest[end:]
	}
	path, query, _ = bytes.Cut(target, []byte{'?'})
	return path, query, nil
}

// isHost reports whether the text has only characters of a host and a port (RFC 3986,
// 3.2.2). An @, which ends userinfo, is none of them.
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

// isEncoded reports whether there is a Transfer-Encoding. fasthttp accepts and drops identity,
// behind which a proxy may see a body (RFC 9112, 6.3: no length can be known).
func isEncoded(h *fasthttp.RequestHeader) bool {
	const name = "transfer-encoding:"
	for line := range bytes.Lines(h.RawHeaders()) {
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return true
		}
	}
	return false
}

// acceptsGzip reads Accept-Encoding (RFC 9110, 12.5.3). It reports whether gzip is
// acceptable and identity is not preferred to it. A coding that is not named has the
// weight of *. Identity without a weight is acceptable and not preferred.
func acceptsGzip(lines [][]byte) bool {
	gzip, identity, others := -1., -1., -1. // -1 = not named
	for _, line := range lines {
		for len(line) > 0 {
			var item []byte
			item, line, _ = bytes.Cut(line, []byte{','})
			coding, quality, _ := bytes.Cut(item, []byte{';'})
			switch coding = bytes.TrimSpace(coding); {
			case bytes.EqualFold(coding, []byte("gzip")), bytes.EqualFold(coding, []byte("x-gzip")):
				gzip = max(gzip, weight(quality))
			case bytes.EqualFold(coding, []byte("identity")):
				identity = weight(quality)
			case string(coding) == "*":
				others = weight(quality)
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

// weight returns the q of an item's parameters. An absent or invalid q is 1.
func weight(list []byte) float64 {
	for len(list) > 0 {
		var p []byte
		p, list, _ = bytes.Cut(list, []byte{';'})
		name, value, _ := bytes.Cut(bytes.TrimSpace(p), []byte{'='})
		if q, err := strconv.ParseFloat(string(value), 64); bytes.EqualFold(name, []byte("q")) && err == nil && q >= 0 && q <= 1 {
			return q
		}
	}
	return 1
}

// matchesETag evaluates If-None-Match (RFC 9110, 13.1.2), which is a list of entity tags,
// compared weakly, or *. It reports whether the tag is in the list: no other tag contains one
// of its quotes.
func matchesETag(lines [][]byte, etag []byte) bool {
	return slices.ContainsFunc(lines, func(line []byte) bool {
		return bytes.Contains(line, etag[len("W/"):]) || string(bytes.TrimSpace(line)) == "*"
	})
}

// cacheControl are the directives of a request's Cache-Control that this service
// follows (RFC 9111, 5.2.1).
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
