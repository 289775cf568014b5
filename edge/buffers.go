package edge

import (
	"sync"

	"github.com/valyala/fasthttp"
)

// A connection keeps fasthttp's buffers while it is idle: what it reads into,
// what it writes heads into, and the last request. This file has the request
// dropped where it was large; the sizes of the others are in server.go.

const (
	// maxHeaders is how many headers a request may have. fasthttp takes 64 bytes
	// for each, besides its text.
	maxHeaders = 100
	// keptRequest is how large a request may be whose buffers serve for the next
	// one, in bytes. It takes four times as many.
	keptRequest = 2 << 10
	// readAtOnce bounds a Read, in bytes. fasthttp parses what the first Read
	// brought of a head, and then waits for its end: one that never comes keeps the
	// memory of so many bytes' lines. Most requests are shorter.
	readAtOnce = 2 << 10
)

// drop gives the buffers of a large request to the collector, and those that
// may be much larger than their text. fasthttp fills new ones. To be called when
// the request has been answered: nothing of it may be used any more.
func (c *conn) drop(ctx *fasthttp.RequestCtx) {
	r := &ctx.Request
	if !c.asked.bulky && c.asked.count <= maxHeaders && len(r.Header.RequestURI())+len(r.Header.RawHeaders()) <= keptRequest {
		return
	}
	ctx.Response.SkipBody = ctx.Response.SkipBody || ctx.IsHead() // which fasthttp asks the request
	ctx.Request = fasthttp.Request{}
	c.asked = asked{}
}

// whole has buffers for answers that must be one piece, as TLS wants them.
var whole = sync.Pool{New: func() any { return new([]byte) }}

// keptWhole is the largest buffer that is kept for the next answer, in bytes.
const keptWhole = 128 << 10
