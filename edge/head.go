package edge

import (
	"bytes"
	"encoding/binary"

	"github.com/valyala/fasthttp"
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
