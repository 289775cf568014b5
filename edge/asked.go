package edge

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

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
