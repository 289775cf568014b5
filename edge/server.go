// Package edge is the public HTTP side of listedge. It turns requests into calls
// of key cache, limiter, cache and origin, and their results into responses.
//
//	request ─► headers ─► route ─► key ─► parameters ─► memory ─► limit ─► fill ─► response
//	              └─────────┴───────┴──────────┴──────────┴─────────┴────────┴───► problem
//
// exchange.go has what every file uses: the server, and a request in the pipeline. Routes and
// pipeline are in page.go. Its steps are there, in request.go (what a request asks for) and in
// access.go (who asks, and whether they may). response.go has all that leaves: headers, the JSON
// around rows, compression, problems. problem.go has all errors.
//
// fasthttp reads requests from, and writes responses to, our connections (conn.go). Every
// connection has one exchange, which its requests use in turn, so that a hit
// allocates nothing.
//
// # A hit: at most 12 files
//
// Read these files in this order to understand a request that memory answers.
//
//	edge/conn.go edge/page.go edge/request.go edge/access.go origin/apikey/key.go
//	origin/apikey/cache.go internal/page/page.go edge/response.go cache/cache.go
//	cache/memory.go cache/entry.go cache/replica/list.go
//
// # A miss: at most 20 files
//
// After those of a hit:
//
//	cache/lookup.go cache/redis.go
//	cache/codec.go internal/lists/encode.go cache/replica/merge.go cache/replica/table.go
//	origin/origin.go origin/fairqueue.go origin/postgres/breaker.go
//	origin/postgres/connect.go origin/postgres/primary.go origin/statements.go
//	internal/lists/lists.go internal/lists/fold.go origin/postgres/statement.go
//	origin/postgres/servers.go origin/postgres/errors.go edge/exchange.go
//	edge/address.go edge/requestlog.go
package edge

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"listedge/internal/boottime"
	"listedge/origin/apikey"
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

// New makes a server. It listens when Serve is called.
func New(o Options) *Server {
	o.MaxConnections = cmp.Or(o.MaxConnections, MaxConnections)
	s := &Server{Options: o, guard: newGuard()}
	s.router = s.newRouter()
	s.Metrics.Connections = s.openConnections
	s.Keys = apikey.NewCache(o.Lookup, s.makeClient, o.Grace, cmp.Or(o.Clock, boottime.New()))
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
	x := begin(ctx)
	x.close = true
	defer s.finish(x)
	x.headers.expands = true // the size of the buffers is not known
	s.writeProblem(x, f)
}

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

// openConnections returns how many connections of clients are open, without refused ones, and how
// many may be.
func (s *Server) openConnections() (open, limit int64) {
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
		if open, limit := l.server.openConnections(); open < limit {
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
