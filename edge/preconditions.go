package edge

import (
	"bytes"

	"listedge/limiter"
)

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

// revalidate finds out whether memory answers 304, which costs no token: before
// one is taken, so that many such requests at once do not refuse one another. A
// request with a cursor may cost a query for the page after, and a rate of 0
// admits nothing.
func (s *Server) revalidate(x *exchange) bool {
	if len(x.asked.noneMatch) == 0 || len(x.asked.match) > 0 || blocked(x.client.bucket) || blocked(x.client.workspaceBucket) || parseCacheControl(x.asked.control).noCache {
		return false
	}
	q := x.query
	if s.parse(x).problem != nil || x.query.After.Set {
		x.query = q
		return false
	}
	x.key = appendPageKey(x.key[:0], &x.query, x.scratch[:0])
	if x.page, x.found = s.cache.Hit(&x.client.spot, x.key, x.now); x.found {
		x.client.leaveTrail(x.page.Page)
	}
	if !x.found || !x.page.Local || !matchesETag(x.asked.noneMatch, x.page.Page.ETag[:]) {
		x.query = q
		return false
	}
	s.countLookUp(x)
	x.free, x.limited, x.limits = true, true, s.limiter.Peek(x.now, x.client.bucket, x.client.workspaceBucket)
	return true
}

func blocked(b *limiter.Bucket) bool { return b != nil && b.Policy().Rate == 0 }

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
