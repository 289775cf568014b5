package edge

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/boottime"
	"listedge/internal/page"
	"listedge/internal/tracing"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// Options are the parts and settings of a Server. The fields up to Logger are required.
type Options struct {
	Cache   *cache.Cache
	Limiter *limiter.Limiter
	Origin  *origin.Origin
	Lookup  apikey.Lookup
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
	Keys  *apikey.Cache[client] // the API keys that were looked up, each with its client
	guard *guard

	router      *router.Router
	longestPath int // bytes of the longest path of a route
	http        *fasthttp.Server
	log         requestLog
	draining    atomic.Bool
	untrusted   atomic.Pointer[forwarder] // the last peer that forwarded and is no trusted proxy; nil = none
	unreadable  atomic.Pointer[forwarder] // the last trusted proxy whose entry was no address; nil = none
}

// exchange is one request and its state in the pipeline. The connection owns it and uses
// it again: nothing in it outlives the handler.
type exchange struct {
	conn    *conn
	http    *fasthttp.RequestCtx
	headers *requestHeaders
	began   time.Time
	now     time.Time // began, or when the last timed phase ended

	path, rawQuery []byte // of the target, as the client sent them

	hasBody  bool   // the request announced a body
	close    bool   // the connection ends with this request
	id       []byte // the request id, in idSpace
	route    metrics.Route
	keyEntry *apikey.Entry[client] // the API key, valid or not; nil before the look-up
	client   *client               // once the key is known to be valid
	query    page.Query            // once parsed
	control  cacheControl          // once memory was looked in
	cost     cost
	decision limiter.Decision // once limited
	period   *period          // of the workspace's quota, once limited; nil = none
	result   cache.Result     // once looked up; without an entry if it has to be filled
	outcome  metrics.Outcome
	failure  *failure // once answered with a problem
	phases   [phases]cache.Span

	idSpace [maxRequestID]byte
	key     []byte // scratch: the cache key
	scratch []byte // scratch: decoded parameters
	decoded []byte // parameters, in scratch if there is room: the query refers to them
}

// cost is how many tokens a request takes from its client.
type cost uint8

const (
	notLimited cost = iota // not known yet: the limiter was not asked
	free                   // nothing: memory answers with 304, 412 or 504
	oneToken               // a token of the key's bucket, of its workspace's and of the quota
)

// phase is a part of the pipeline that is timed separately.
type phase uint8

const (
	phaseKey phase = iota
	phaseMemory
	phaseLimit
	phaseForward // Redis, the origin, or waiting for another request's fill
	phases
)

// endPhase notes how long a phase took since the one before it ended. Phases that may
// have waited are always timed. The others are timed only for traces,
// because reading the clock takes longer than most of them.
func (x *exchange) endPhase(p phase) {
	span, now := &x.phases[p], time.Now()
	if span.Began.IsZero() {
		span.Began = x.now
	}
	span.Took, x.now = now.Sub(span.Began), now
}

const maxRequestID = 128 // bytes of an id that a client chose
