// Package edge is the public HTTP side of listedge. It turns requests into calls
// of key cache, limiter, cache and origin, and their results into responses.
//
//	request ─► headers ─► route ─► key ─► parameters ─► memory ─► limit ─► fill ─► response
//	              └─────────┴───────┴──────────┴──────────┴─────────┴────────┴───► problem
//
// server.go has the server, its routes and connections. pipeline.go has a request on its way from
// its headers to its response. request.go has what it may ask for, access.go what a node keeps of
// clients and of addresses. response.go has all that leaves: headers, the frame of
// gzip, the request id, problems. openapi.go describes the API of the lists, and docs.go serves that.
//
// fasthttp reads requests from, and writes responses to, our connections. Every connection has
// one exchange, which its requests use in turn, so that a hit allocates nothing.
//
// # A hit: at most 10 files
//
// Read these files in this order to understand a request that memory answers.
//
//	edge/server.go edge/pipeline.go edge/request.go origin/apikey/key.go
//	origin/apikey/cache.go edge/response.go cache/cache.go cache/lookup.go cache/entry.go
//	cache/replica/list.go
//
// # A miss: at most 16 files
//
// After those of a hit:
//
//	internal/page/page.go cache/redis.go
//	internal/list/row.go internal/list/value.go cache/replica/replica.go
//	origin/origin.go origin/fairqueue.go origin/postgres/database.go
//	origin/postgres/connect.go origin/statements.go internal/list/list.go
//	internal/list/fold.go origin/postgres/statement.go origin/postgres/errors.go edge/access.go edge/requestlog.go
package edge

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unique"

	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"listedge/cache"
	"listedge/internal/boottime"
	"listedge/internal/list"
	"listedge/internal/rawconn"
	"listedge/internal/tracing"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// Timeouts and sizes of the public listener.
const (
	readTimeout  = 5 * time.Second  // of a whole request
	writeTimeout = 10 * time.Second // of a whole response
	idleTimeout  = 75 * time.Second // above the usual 60 s of load balancers, which then close first
	readBuffer   = 16 << 10         // the largest headers of a request, in bytes; larger ones get a 431
)

// MaxConnections is how many connections a server may take at most; Options may say fewer.
const MaxConnections = 100_000

// Options are the parts and settings of a Server. The fields up to Logger are required.
type Options struct {
	Lists   *list.Set
	Cache   *cache.Cache
	Limiter *limiter.Limiter
	Lookup  apikey.Lookup
	Forms   apikey.Forms  // nil = no keys were imported
	Grace   time.Duration // how long keys are valid in memory without Postgres
	Metrics *metrics.Edge
	Logger  *slog.Logger
	Proxies []netip.Prefix // trusted proxies, whose X-Forwarded-For is used

	Usage *usage.Recorder // counts the usage of keys; nil = it is not counted

	Clock *boottime.Clock // measures the age of keys in memory; nil = a new one

	MaxConnections int  // further connections get a 503; 0 = the constant MaxConnections
	NoDocs         bool // /docs is 404

	AccessLog AccessLog
	Tracer    *tracing.Tracer // nil = none; else all phases are timed, and not only those that may have waited
}

// Server answers the public listener.
type Server struct {
	Options
	proxies
	Keys  *apikey.Cache[client] // the API keys that were looked up, each with its client
	guard *guard

	docs, none  *metrics.Route // of the documents, and of requests without a route
	router      *router.Router
	longestPath int // bytes of the longest path of a route
	http        *fasthttp.Server
	log         requestLog
	draining    atomic.Bool
}

// New makes a server. It listens when Serve is called.
func New(o Options) *Server {
	o.MaxConnections = cmp.Or(o.MaxConnections, MaxConnections)
	s := &Server{Options: o, proxies: proxies{networks: o.Proxies}, guard: newGuard()}
	s.docs, s.none = o.Metrics.Route("docs"), o.Metrics.Route("none")
	s.router = s.newRouter()
	s.Keys = apikey.NewCache(o.Lookup, o.Forms, s.makeClient, o.Grace, cmp.Or(o.Clock, boottime.New()))
	s.http = &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.handleUnreadable,
		HeaderReceived:               refuseBody,
		ExpectHandler:                s.handleExpectation,
		Logger:                       silent,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		ReadBufferSize:               readBuffer,
		WriteBufferSize:              writeBuffer,
		MaxRequestBodySize:           1,
		Concurrency:                  2 * MaxConnections, // the listener refuses first, with a problem
		CloseOnShutdown:              true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true,
		DisablePreParseMultipartForm: true,
		LazyRequestTime:              true,
	}
	return s
}

// Serve serves the connections of the listener until Shutdown.
func (s *Server) Serve(l net.Listener) error {
	limited := &limitedListener{Listener: l, server: s, shortage: rate.Sometimes{Interval: shortageLog}}
	limited.refusals.SetLimit(maxRefusals)
	if err := s.http.Serve(limited); err != nil {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Drain makes every response close its connection, so that clients open their next
// connection to another node. Shutdown is called after clients had time to do so.
func (s *Server) Drain() { s.draining.Store(true) }

// Shutdown closes the listener and idle connections, waits for requests in
// flight until ctx ends, and stops looking up keys.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	err := s.http.ShutdownWithContext(ctx)
	s.Keys.Close()
	if err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return nil
}

// newRouter makes the router. A path must match exactly as the client sent it: nothing
// is cleaned, redirected or compared without case. So a proxy in front and this node
// never disagree on what a target means.
func (s *Server) newRouter() *router.Router {
	r := router.New()
	r.RedirectTrailingSlash, r.RedirectFixedPath = false, false
	r.HandleMethodNotAllowed, r.HandleOPTIONS = false, false // ANY does: 405 with a problem
	get := func(path string, route *metrics.Route, serve func(*exchange) *failure) {
		s.longestPath = max(s.longestPath, len(path))
		r.GET(path, s.handler(route, serve))
		r.HEAD(path, s.handler(route, serve))
		r.ANY(path, s.handler(route, func(*exchange) *failure { return &failure{problem: wrongMethod} }))
	}
	for _, l := range s.Lists.Lists {
		e := endpointOf(l)
		get("/v1/"+l.Name, s.Metrics.List(l.Name), func(x *exchange) *failure { return x.list(e) })
	}
	for path, d := range documents(s.Lists) {
		if path == openAPIPath || !s.NoDocs {
			get(path, s.docs, func(x *exchange) *failure { return d().serve(x) })
		}
	}
	r.NotFound = s.handler(s.none, func(x *exchange) *failure {
		return cmp.Or(s.guard.limit(x, publicResponses, 1, noKeyLimited), &failure{problem: notFound})
	})
	return r
}

// handler makes fasthttp's handler of serve, which writes the response or returns a failure.
func (s *Server) handler(route *metrics.Route, serve func(*exchange) *failure) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		x := &ctx.Conn().(*conn).exchange
		x.route = route
		if f := serve(x); f != nil {
			x.fail(f)
		}
	}
}

// handle answers a request without a body.
func (s *Server) handle(ctx *fasthttp.RequestCtx) { s.serve(s.begin(ctx)) }

// begin returns the connection's exchange, for a new request, which has an id.
func (s *Server) begin(ctx *fasthttp.RequestCtx) *exchange {
	c := ctx.Conn().(*conn)
	x := &c.exchange
	x.server, x.conn, x.http, x.headers, x.route, x.began = s, c, ctx, &c.headers, s.none, time.Now()
	x.now = x.began
	x.headers.read(&ctx.Request.Header)
	if sent := x.headers.id; len(sent) == 1 && validRequestID(sent[0]) {
		x.id = append(x.idSpace[:0], sent[0]...)
	} else {
		c.requests++
		x.id = strconv.AppendUint(append(x.idSpace[:0], c.idPrefix...), c.requests, 36)
	}
	return x
}

// handleBody answers a request that has a body, which is not read.
func (s *Server) handleBody(ctx *fasthttp.RequestCtx) {
	x := s.begin(ctx)
	x.hasBody, x.close = true, true
	s.serve(x)
}

// refuseBody prevents fasthttp from reading a body. fasthttp calls handleUnreadable at
// once if the announced length is above MaxRequestBodySize, which is 1. So lengths that
// it would accept are replaced by 2.
func refuseBody(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
	if n := h.ContentLength(); n == 1 || n == -1 { // chunked
		h.SetContentLength(2)
	}
	return c
}

// serve answers a request that could be read. The router continues at list, at a document or
// at a problem.
func (s *Server) serve(x *exchange) {
	defer x.finish()
	if x.headers.isForwarded {
		s.checkProxy(x)
	}
	if f := x.checkHeaders(); f != nil {
		x.fail(f)
		return
	}
	if len(x.path) > s.longestPath { // no route has it, and fasthttp would spend time to normalise it
		s.router.NotFound(x.http)
		return
	}
	if u := x.http.URI(); !bytes.Equal(u.PathOriginal(), x.path) { // the router reads it there, where fasthttp's own parser may have changed it
		u.SetPathBytes(x.path)
	}
	s.router.Handler(x.http)
}

// handleExpectation answers a request that waits for permission to send its body (Expect:
// 100-continue): no body is read here. A request without a body needs no permission
// (RFC 9110, 10.1.1) and continues at handle.
func (s *Server) handleExpectation(ctx *fasthttp.RequestCtx) (status int) {
	boundWrite(ctx)
	const unframed = -2 // neither Content-Length nor Transfer-Encoding
	if n := ctx.Request.Header.ContentLength(); n == 0 || n == unframed {
		return fasthttp.StatusContinue
	}
	s.handleBody(ctx)
	return ctx.Response.StatusCode()
}

// handleUnreadable answers what fasthttp could not read as a request. A broken
// connection gets no response and is not counted.
func (s *Server) handleUnreadable(ctx *fasthttp.RequestCtx, err error) {
	if broken := (*net.OpError)(nil); errors.As(err, &broken) && !broken.Timeout() {
		ctx.Request = fasthttp.Request{} // the next connection has its own
		return
	}
	boundWrite(ctx)
	ctx.Response.Reset()
	ctx.Response.SkipBody = ctx.IsHead()
	if errors.Is(err, fasthttp.ErrBodyTooLarge) { // the error for any body: see refuseBody
		s.handleBody(ctx)
		return
	}
	s.answerUnread(ctx, &failure{problem: unreadableProblem(err)})
}

// boundWrite sets the deadline of a response for which fasthttp sets none: that of an earlier
// response on the connection may have passed. If it cannot be set, the write fails, too.
func boundWrite(ctx *fasthttp.RequestCtx) {
	_ = ctx.Conn().SetWriteDeadline(time.Now().Add(writeTimeout))
}

// answerUnread answers a request that was not read, or of which only headers were.
func (s *Server) answerUnread(ctx *fasthttp.RequestCtx, f *failure) {
	x := s.begin(ctx)
	x.close = true
	defer x.finish()
	x.headers.expands = true // the size of the buffers is not known
	x.fail(f)
}

// makeClient makes the client of a new or changed key. The bucket of a changed key
// keeps its level and gets the new limit. A key that was moved to another workspace
// gets that workspace's bucket.
func (s *Server) makeClient(k apikey.Key, c *client) {
	c.usage = s.Usage.Counter(usage.Key{Workspace: k.Workspace, ID: k.ID})
	c.limit, c.workspaceLimit = k.Limit.Burst, k.WorkspaceLimit.Burst
	policy := policyOf(k.Limit)
	c.bucket = s.Limiter.Bucket(limiter.KeyBucket(k.Workspace.String(), k.ID.String()), policy)
	var lines header
	lines.policy("key", policy)
	if k.WorkspaceLimit.Set {
		shared := policyOf(k.WorkspaceLimit)
		c.workspaceBucket = s.Limiter.Bucket(limiter.WorkspaceBucket(k.Workspace.String()), shared)
		lines.put(", ")
		lines.policy("workspace", shared)
	}
	c.policy = unique.Make(string(lines))
	if k.Quota.Period != "" {
		c.quota = &quota{limiter: s.Limiter, workspace: k.Workspace.String(), Quota: k.Quota}
		c.quota.at(time.Now()) // requests of this period allocate nothing
	}
}

// Records returns the logged requests with that request id, the newest first. Several requests
// may have one id, because clients choose ids.
func (s *Server) Records(id string) []Record { return s.log.find(id) }

// silent drops fasthttp's log of clients' errors. Clients could fill the log, and they
// get the error as a response.
var silent = log.New(io.Discard, "", 0)

const (
	// acceptRetry is the pause after a failed Accept. Accept fails while there are no free file
	// descriptors, which ends when any client disconnects.
	acceptRetry = 50 * time.Millisecond
	// shortageLog is how often the log says that Accept fails.
	shortageLog = 10 * time.Second

	// maxRefusals bounds the refused connections that are open to send a response.
	// Further connections are closed without one, because each needs a descriptor.
	maxRefusals = 64
	// refusalTimeout bounds a refusal: handshake, response and closing.
	refusalTimeout = 5 * time.Second
)

// limitedListener accepts up to MaxConnections connections. It answers further ones with a 503
// whose body is a problem; fasthttp would answer in plain text. It returns an error only
// when it is closed, because fasthttp stops serving at any error.
type limitedListener struct {
	net.Listener
	server   *Server
	shortage rate.Sometimes // limits how often a failed Accept is logged
	refusals errgroup.Group // at most maxRefusals
}

// Connections returns how many connections of clients are open, without refused ones, and how
// many may be.
func (s *Server) Connections() (open, limit int64) {
	return max(0, int64(s.http.GetOpenConnectionsCount())), int64(s.MaxConnections) // -1 before Serve
}

// Accept returns the next connection that the limit admits, and refuses the others. It retries
// while the system refuses one (syscall.Errno); any other error means that the listener is closed.
// One goroutine calls it, in which fasthttp counts the connection before the next call.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if shortage := syscall.Errno(0); errors.As(err, &shortage) {
			l.shortage.Do(func() { l.server.Logger.Error("cannot accept connections: retrying", "error", err) })
			time.Sleep(acceptRetry)
			continue
		}
		if err != nil {
			return nil, err
		}
		if open, limit := l.server.Connections(); open < limit {
			return newConn(c), nil
		}
		if !l.refusals.TryGo(func() error {
			l.server.refuseConnection(c)
			return nil
		}) {
			c.Close()
		}
	}
}

// refuseConnection answers a connection with a 503 and closes it.
func (s *Server) refuseConnection(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(refusalTimeout)) // also of reads, for the handshake
	refused, ctx := newConn(c), &fasthttp.RequestCtx{}
	ctx.Init2(refused, silent, false)
	s.answerUnread(ctx, &failure{problem: tooManyConns, cause: fmt.Errorf("%d connections are open, as many as are allowed", s.MaxConnections)})
	w := bufio.NewWriterSize(refused, writeBuffer)
	if ctx.Response.Write(w) == nil {
		_ = w.Flush()
	}
}

// conn is a connection of the public listener. It checks the line ends of what it reads,
// sets deadlines only when it must, and sends responses. One goroutine uses it at a time;
// only Close may be called by another.
type conn struct {
	net.Conn
	lines    lineChecker // checks all that is read
	response response
	headers  requestHeaders
	exchange exchange
	lastKey  apikey.LastKey
	hits     uint64 // responses that were neither errors nor misses
	idPrefix []byte // random; an id that a request gets here begins with it
	requests uint64 // how many got such an id, which ends with this number

	readBy      time.Time // the deadline of the next Read
	read, write deadline
}

func newConn(c net.Conn) *conn {
	made := &conn{Conn: c, idPrefix: []byte(strings.ToLower(rand.Text()[:16]) + "-")}
	if plain, ok := c.(*net.TCPConn); ok {
		made.Conn = rawconn.New(plain)
	}
	made.response.conn = made
	made.exchange.textRoom = make([]byte, 0, 1792) // for the longest parameters
	return made
}

// peer returns the address that the connection comes from; the zero address if it is not TCP.
func (c *conn) peer() (peer netip.Addr) {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		peer, _ = netip.AddrFromSlice(tcp.IP)
	}
	return peer.Unmap()
}

// deadlineSlack is how much later than requested a deadline may expire. A deadline within
// it is not moved, because setting one costs 0.2 µs and a request sets three.
const deadlineSlack = time.Second

// deadline is a connection's deadline to read or to write, as it was last set; zero = none.
type deadline struct{ at time.Time }

// move says whether the deadline must be set anew to expire between t and
// deadlineSlack after it, and to what. The zero time is no deadline.
func (d *deadline) move(t time.Time) (to time.Time, moved bool) {
	if t.IsZero() {
		moved = !d.at.IsZero()
	} else if late := d.at.Sub(t); late < 0 || late > deadlineSlack {
		t, moved = t.Add(deadlineSlack), true
	}
	if moved {
		d.at = t
	}
	return t, moved
}

// SetReadDeadline takes effect at the next Read. Most requests are in the
// buffer already, and their own deadline is never needed.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readBy = t
	return nil
}

func (c *conn) Read(p []byte) (int, error) {
	if t, moved := c.read.move(c.readBy); moved {
		if err := c.Conn.SetReadDeadline(t); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p[:min(len(p), maxRead)])
	if valid := c.lines.check(p[:n]); valid < n {
		p[valid] = 0 // makes fasthttp refuse the request: no header may contain it
		return valid + 1, errLine
	}
	return n, err
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	if t, moved := c.write.move(t); moved {
		return c.Conn.SetWriteDeadline(t)
	}
	return nil
}

func (c *conn) Write(p []byte) (int, error) {
	if c.response.pending {
		c.response.head = append(c.response.head, p...)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// A connection keeps fasthttp's buffers while it is idle: the one it reads into,
// the one it writes headers into, and the last request.
const (
	// maxHeaders is how many headers a request may have. For each, fasthttp takes 64 bytes
	// besides its text.
	maxHeaders = 100
	// keptRequest is the largest request, in bytes, whose buffers are used again.
	// The buffers take four times as much.
	keptRequest = 2 << 10
	// maxRead bounds a Read, in bytes. fasthttp parses what the first Read brought
	// of the headers and then waits for their end, so this bounds the memory of a
	// request that never ends. Most requests are shorter.
	maxRead = 2 << 10
)

// dropRequest frees the buffers of a large request, and of one whose buffers may
// be much larger than its text. fasthttp fills new ones. The request must not be
// used after it.
func (c *conn) dropRequest(ctx *fasthttp.RequestCtx) {
	r := &ctx.Request
	if !c.headers.expands && c.headers.count <= maxHeaders && len(r.Header.RequestURI())+len(r.Header.RawHeaders()) <= keptRequest {
		return
	}
	ctx.Response.SkipBody = ctx.Response.SkipBody || ctx.IsHead() // fasthttp would read it from the request
	ctx.Request = fasthttp.Request{}
	c.headers = requestHeaders{}
}

// lineChecker checks how the lines of a connection's requests begin and end.
// fasthttp takes LF for CRLF in most places, waits for a CRLF in others, and
// joins folded lines, so a proxy in front might see other requests in the same
// bytes (request smuggling). RFC 9112 (2.2, 5.2) lets a server refuse both.
//
// Invariant: every byte belongs to a request's headers, because no body is read.
type lineChecker struct {
	last     byte // the last byte that was checked
	encoding bool // a line began with t, so checkHeaders must look for a Transfer-Encoding
}

var errLine = errors.New("a line ends in LF alone or is folded")

// check returns how many bytes of p are valid: all, or those before an LF without
// CR, or before the blank that folds a line.
func (l *lineChecker) check(p []byte) int {
	for i := 0; ; {
		if l.last == '\n' && i < len(p) {
			if p[i] == ' ' || p[i] == '\t' {
				return i
			}
			l.encoding = l.encoding || p[i]|0x20 == 't'
		}
		end := bytes.IndexByte(p[i:], '\n')
		if end < 0 {
			break
		}
		i += end
		if i > 0 {
			l.last = p[i-1]
		}
		if l.last != '\r' {
			return i
		}
		l.last = '\n'
		i++
	}
	if len(p) > 0 {
		l.last = p[len(p)-1]
	}
	return len(p)
}

const (
	lingerTimeout = 500 * time.Millisecond // how long a refused client may go on sending
	refusedBody   = 64 << 10               // the largest body, in bytes, that passes checkHeaders; linger drops as many
)

// linger reads and drops the bytes that a refused client still sends. Reason: closing a
// connection with unread bytes resets it, and the client may see the reset before the
// response.
func linger(c net.Conn) {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTimeout)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c, refusedBody)
}
