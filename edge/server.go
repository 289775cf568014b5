// Package edge is the HTTP side of listedge: it turns requests into calls on
// keyring, limiter, cache and origin, and what they return into answers.
//
//	request ──► identify ► route ► authenticate ► limit ► parse ► look up ► write ──► page
//	               └────────────┴─────────┴─────────┴───────┴────────┴──► problem ──► error
//
// The pipeline is handler.go; the longer steps are in files of their own: key.go,
// limits.go, request.go, lookup.go and page.go. problem.go says what goes wrong.
package edge

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/boottime"
	"listedge/internal/tracing"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
)

// Options are what a Server works with; all up to Logger are required.
type Options struct {
	Cache   *cache.Cache
	Limiter *limiter.Limiter
	Origin  *origin.Origin
	Lookup  origin.KeyLookup
	Grace   time.Duration // known keys without Postgres
	Metrics *metrics.Edge
	Logger  *slog.Logger
	Proxies []netip.Prefix // whose X-Forwarded-For is believed

	Clock *boottime.Clock // tells how old what is known of a key is; nil = one of the server's own

	MaxConnections int  // open at once; above: 503; 0 = MostConnections
	NoDocs         bool // /docs is 404

	AccessLog    AccessLog
	ServerTiming bool            // every answer tells how long its parts took
	Tracer       *tracing.Tracer // nil = nobody is told of requests
}

// Server answers the public listener.
type Server struct {
	cache   *cache.Cache
	limiter *limiter.Limiter
	origin  *origin.Origin
	keyring *origin.Keyring[client]
	guard   *guard
	metrics *metrics.Edge
	logger  *slog.Logger
	proxies []netip.Prefix

	router       *router.Router
	docs         map[string]*document // by path; nil = not served
	maxConns     int64                // open at once; beyond: 503
	http         *fasthttp.Server
	ids          requestIDs
	journal      journal
	accessLog    AccessLog
	serverTiming bool
	tracer       *tracing.Tracer // nil = none
	timed        bool            // every step of every request
	draining     atomic.Bool
	unnamed      unnamedProxy
}

// Timeouts and sizes of the public listener.
const (
	readTimeout  = 5 * time.Second  // a request that drips in is given up
	writeTimeout = 10 * time.Second // so is a client that does not read
	idleTimeout  = 75 * time.Second // above the usual 60 s of load balancers, so that they close first
	readBuffer   = 16 << 10         // the largest request header, in bytes; above: 431
	writeBuffer  = 4 << 10          // more than an answer's head; pages do not go through it
	refusedBody  = 64 << 10         // dropped, to refuse its method rather than its size
)

// MostConnections is the largest number of connections that a server takes.
const MostConnections = 100_000

// New makes a server. It listens when Serve is called.
func New(o Options) *Server {
	if o.Clock == nil {
		o.Clock = boottime.New()
	}
	s := &Server{
		cache: o.Cache, limiter: o.Limiter, origin: o.Origin,
		guard: newGuard(), maxConns: int64(cmp.Or(o.MaxConnections, MostConnections)), metrics: o.Metrics, logger: o.Logger, proxies: o.Proxies,
		ids: newRequestIDs(), accessLog: o.AccessLog, serverTiming: o.ServerTiming, tracer: o.Tracer, timed: o.ServerTiming || o.Tracer != nil,
	}
	if !o.NoDocs {
		s.docs = docs()
	}
	s.router = s.newRouter()
	s.keyring = origin.NewKeyring(o.Lookup, s.makeClient, o.Grace, o.Clock)
	s.http = &fasthttp.Server{
		Handler:                       s.handle,
		ErrorHandler:                  s.handleUnreadable,
		HeaderReceived:                refuseBody,
		ExpectHandler:                 s.handleExpectation,
		Logger:                        silent{},
		ReadTimeout:                   readTimeout,
		WriteTimeout:                  writeTimeout,
		IdleTimeout:                   idleTimeout,
		ReadBufferSize:                readBuffer,
		WriteBufferSize:               writeBuffer,
		MaxRequestBodySize:            1,
		Concurrency:                   2 * MostConnections, // the listener refuses first, with a proper answer
		CloseOnShutdown:               true,
		NoDefaultServerHeader:         true,
		NoDefaultContentType:          true,
		SecureErrorLogMessage:         true,
		DisablePreParseMultipartForm:  true,
		DisableHeaderNamesNormalizing: false,
		LazyRequestTime:               true,
	}
	return s
}

// Serve answers connections of the listener until Shutdown.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(s.limitConnections(l)); err != nil {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Drain has every answer from now on close its connection, so that clients
// open their next one elsewhere. Shutdown after all had time for an answer.
func (s *Server) Drain() { s.draining.Store(true) }

// Shutdown closes the listener and idle connections, waits for answers under
// way until ctx ends, and stops looking up keys.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	err := s.http.ShutdownWithContext(ctx)
	s.keyring.Close()
	if err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return nil
}

// KeyringStats is what the node knows of keys.
func (s *Server) KeyringStats() origin.KeyringStats { return s.keyring.Stats() }

// refuseBody has fasthttp read no body. It refuses one that is announced larger
// than MaxRequestBodySize without waiting for it, and handleUnreadable answers.
func refuseBody(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
	if n := h.ContentLength(); n == 1 || n == -1 { // chunked
		h.SetContentLength(2)
	}
	return c
}

// silent: fasthttp logs what clients do wrong, which they are told, and by
// doing so would let them fill the log.
type silent struct{}

func (silent) Printf(string, ...any) {}
