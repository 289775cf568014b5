package edge

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
)

// exchange is one request on its way through the pipeline, and what has become
// known of it. It is its connection's: nothing in it outlives the handler.
type exchange struct {
	conn  *conn // by which it came
	http  *fasthttp.RequestCtx
	began time.Time
	now   time.Time // began, or when it last passed a step that was timed

	path, parameters []byte // of the target, as the client sent it
	asked            *asked

	body    bool   // one was announced
	last    bool   // its connection ends with it
	id      []byte // the request id, in idSpace
	route   metrics.Route
	known   *origin.KnownKey[client] // its key, valid or not
	client  *client                  // once authenticated
	limits  limiter.Decision         // once limited
	limited bool                     // limits is set
	query   origin.Query             // once parsed
	page    cache.Result             // once looked up
	found   bool                     // page was in memory before a token was taken
	free    bool                     // no token was
	ahead   bool                     // the page after it is being read, too
	outcome metrics.Outcome
	failed  failure // once answered so
	steps   [steps]cache.Span

	idSpace [maxRequestID]byte
	key     []byte // scratch: the page's cache key
	scratch []byte // scratch: decoded parameters, parts of the key
}

// failure is why an exchange ends in an error answer; no problem, no failure.
type failure struct {
	problem *problem
	faults  faults
	retry   int64 // Retry-After in seconds; 0 = none
	cause   error // for the log
}

func begin(ctx *fasthttp.RequestCtx) *exchange {
	c := ctx.Conn().(*conn)
	x, arrived := &c.exchange, c.arrival()
	x.conn, x.began, x.now = c, arrived, arrived
	x.http, x.asked = ctx, &c.asked
	x.asked.read(&ctx.Request.Header)
	return x
}

// status is what the request is answered with.
func (x *exchange) status() int {
	if x.conn.answer.pending {
		return x.conn.answer.status
	}
	return x.http.Response.StatusCode()
}

func (x *exchange) end() { *x = exchange{key: x.key[:0], scratch: x.scratch[:0]} }

const headerRequestID = "X-Request-Id"

// maxRequestID is the longest id taken over from a client, in bytes.
const maxRequestID = 128

// requestIDs makes ids for requests that bring none: the process's random
// name, the connection's number and the request's on it.
type requestIDs struct {
	process     string
	connections atomic.Uint64
}

func newRequestIDs() requestIDs { return requestIDs{process: strings.ToLower(rand.Text()[:10])} }

// prefix begins the ids of another connection's requests.
func (g *requestIDs) prefix() []byte {
	return append(strconv.AppendUint([]byte(g.process+"-"), g.connections.Add(1), 36), '-')
}

func (c *conn) appendID(dst []byte) []byte {
	c.requests++
	return strconv.AppendUint(append(dst, c.idPrefix...), c.requests, 36)
}

// validRequestID is ^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$.
func validRequestID(id []byte) bool {
	if len(id) == 0 || len(id) > maxRequestID {
		return false
	}
	for i, c := range id {
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alphanumeric && (i == 0 || c != '.' && c != '_' && c != ':' && c != '-') {
			return false
		}
	}
	return true
}
