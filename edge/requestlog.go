package edge

import (
	"cmp"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/internal/tracing"
	"listedge/limiter"
	"listedge/origin/apikey"
)

// requestLog keeps the latest requests of each class, so that an operator can look one
// up by its id. Each class has its own ring, so that a flood of one class, for example of
// 429s, does not evict entries of another.
type requestLog struct {
	mu    sync.Mutex // guards the fields below
	rings [logClasses][entriesPerRing]*Record
	added [logClasses]uint64
}

// logClass is why a request is logged.
type logClass uint8

const (
	failed  logClass = iota // a failure of the service, a stale page, a slow response
	refused                 // any other error
	missed                  // a page that was not in memory
	sampled                 // one of many hits
	logClasses
	unlogged
)

const (
	slowFrom       = 100 * time.Millisecond // a response that takes longer is logged as failed
	hitsPerSample  = 64                     // on a connection; the first of them is logged
	entriesPerRing = 1024
	maxCause       = 900 // bytes of an error's text
	maxAgent       = 120 // bytes of a User-Agent
)

// AccessLog says which classes of requests are also written to the log as lines.
// Failures of the service are always written: internal errors each, of the others one a second
// of each kind.
type AccessLog string

// Values of AccessLog; any other writes no lines.
const (
	LogErrors  AccessLog = "errors"  // errors, stale pages and slow responses
	LogSampled AccessLog = "sampled" // these, misses and a sample of hits
)

func (l AccessLog) has(class logClass) bool {
	return l == LogSampled && class != unlogged || l == LogErrors && (class == failed || class == refused)
}

func (l *requestLog) add(class logClass, r *Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rings[class][l.added[class]%entriesPerRing] = r
	l.added[class]++
}

// find returns the logged requests with that request id, the newest first. Several requests
// may have one id, because clients choose ids.
func (l *requestLog) find(id string) []Record {
	records := []Record{}
	l.mu.Lock()
	for class := range l.rings {
		for _, r := range l.rings[class] {
			if r != nil && r.RequestID == id {
				records = append(records, *r)
			}
		}
	}
	l.mu.Unlock()
	slices.SortFunc(records, func(a, b Record) int { return b.Arrived.Compare(a.Arrived) })
	return records
}

// Record is a request in the request log, and a line of the access log. It contains no API key,
// search term or cursor. Its texts have bounds, whatever a client sends. Times are in seconds.
// Most records are never looked at, so fields become texts only when a record is written.
type Record struct {
	RequestID   string     `json:"requestId"`
	Arrived     time.Time  `json:"arrived"`
	Route       string     `json:"route"`
	Status      int        `json:"status"`
	Outcome     string     `json:"outcome"`
	Bytes       int        `json:"bytes"`  // of the body, as it was sent
	Client      netip.Addr `json:"client"` // behind trusted proxies
	Agent       headerText `json:"agent"`  // the beginning of its User-Agent
	KeyPrefix   headerText `json:"keyPrefix"`
	KeyID       uuid.UUID  `json:"keyId,omitzero"` // of a key that exists
	WorkspaceID uuid.UUID  `json:"workspaceId,omitzero"`
	Message     string     `json:"message,omitzero"` // the error message that the client got
	Cause       string     `json:"cause,omitzero"`   // why there was an error or a stale page

	Limit           string     `json:"limit,omitzero"`           // who decided: a limiter.Source; empty = the limiter was not called
	RefusedBy       string     `json:"refusedBy,omitzero"`       // key, workspace or quota
	RetryAfter      float64    `json:"retryAfter,omitzero"`      // seconds
	RateLimitPolicy headerText `json:"rateLimitPolicy,omitzero"` // the rates and bursts
	RateLimit       headerText `json:"rateLimit,omitzero"`       // what remained

	Tier        string  `json:"tier,omitzero"` // memory, redis or origin; empty = there was no page
	CacheStatus string  `json:"cacheStatus,omitzero"`
	Missed      string  `json:"missed,omitzero"`    // why memory did not have it
	ProofAge    float64 `json:"proofAge,omitzero"`  // seconds since the page was last known to equal the database
	Round       string  `json:"round,omitzero"`     // of a client that tracks the list: none, delta or full
	FullCause   string  `json:"fullCause,omitzero"` // why its round begins with the whole list

	// Seconds that the request and its phases took; 0 = no time, or not timed. Fill is a part of
	// wait, and query is a part of fill, unless another request began the fill (shared).
	Took       float64 `json:"took"`
	KeyTook    float64 `json:"keyTook,omitzero"`
	MemoryTook float64 `json:"memoryTook,omitzero"`
	LimitTook  float64 `json:"limitTook,omitzero"`
	WaitTook   float64 `json:"waitTook,omitzero"` // for a page that was not in memory
	RedisTook  float64 `json:"redisTook,omitzero"`
	FillTook   float64 `json:"fillTook,omitzero"`
	QueryTook  float64 `json:"queryTook,omitzero"`
	Shared     bool    `json:"shared,omitzero"`
}

// attributes are the record's fields for a line of the log, by their names in JSON.
func (r *Record) attributes() (all []slog.Attr) {
	fields := reflect.ValueOf(r).Elem()
	for field, value := range fields.Fields() {
		if name, optional := strings.CutSuffix(field.Tag.Get("json"), ",omitzero"); !optional || !value.IsZero() {
			all = append(all, slog.Any(name, value.Interface()))
		}
	}
	return all
}

// headerText is a header's value. It is written without its quotes, and with escapes, because an
// operator's terminal may show what a client sent.
type headerText string

// MarshalText implements encoding.TextMarshaler.
func (t headerText) MarshalText() ([]byte, error) {
	quoted := strconv.AppendQuoteToASCII(nil, strings.ReplaceAll(string(t), `"`, ""))
	return quoted[1 : len(quoted)-1], nil
}

// recordOf returns what the log, explain and traces say of an exchange.
func recordOf(x *exchange, status int, took time.Duration) *Record {
	fill, key, agent := x.times(), single(x.headers.key), x.http.UserAgent()
	r := &Record{
		RequestID: string(x.id), Arrived: x.began.UTC().Round(0), Route: x.route.String(), Status: status, Outcome: x.outcome().String(),
		Bytes: x.bodySize(), Client: x.server.clientAddress(x).WithZone(""), Agent: headerText(agent[:min(len(agent), maxAgent)]),
		// At most a quarter of a key, so that a short text that is no key is not known from its prefix either.
		KeyPrefix: headerText(key[:min(len(key)/4, apikey.VisiblePrefix)]),
		Took:      took.Seconds(), KeyTook: x.phases[phaseKey].Took.Seconds(), LimitTook: x.phases[phaseLimit].Took.Seconds(),
		MemoryTook: x.phases[phaseMemory].Took.Seconds(), WaitTook: x.phases[phaseForward].Took.Seconds(), Shared: x.result.Collapsed,
		RedisTook: fill.Redis.Took.Seconds(), FillTook: fill.Fill.Took.Seconds(), QueryTook: fill.Query.Took.Seconds(),
	}
	cause := x.result.Err
	if x.failure != nil {
		r.Message, cause = x.failure.problem.message, cmp.Or(x.failure.cause, cause)
	}
	if cause != nil {
		r.Cause = clip(cause.Error(), maxCause)
	}
	if x.caller.key != nil {
		r.KeyID, r.WorkspaceID = x.caller.key.ID, x.caller.key.Workspace
	}
	if x.grant.cost != notLimited {
		d := &x.grant.decision
		r.Limit, r.RetryAfter = d.Source.String(), d.RetryAfter.Seconds()
		if d.Refused != limiter.NoLimit {
			r.RefusedBy = d.Refused.String()
		}
		r.RateLimitPolicy, r.RateLimit = headerText(x.conn.response.lines.value("RateLimit-Policy")), headerText(x.conn.response.lines.value("RateLimit"))
	}
	tracked := x.tracked != nil && x.failure == nil
	if tracked {
		r.Round, r.FullCause = x.tracked.Kind.String(), x.tracked.Cause.String()
	}
	if x.result.Entry != nil || tracked {
		r.Tier, r.CacheStatus, r.ProofAge, r.Missed = x.result.Source.String(), cacheStatusOf(&x.result), x.result.Age.Seconds(), x.result.Missed
	}
	return r
}

// times returns what was spent on finding the page.
func (x *exchange) times() *cache.Times { return cmp.Or(x.result.Times, &cache.Times{}) }

// startTrace returns the span of the request, or nil if it is not sampled.
func startTrace(x *exchange) *tracing.Span {
	name := "HTTP" // for methods other than GET and HEAD, which clients may make up
	if x.http.IsGet() || x.http.IsHead() {
		name = string(x.http.Method()) + " " + x.route.String()
	}
	// The caller's trace counts only from a client within the limit of its key, or from a trusted
	// proxy. Any other client could have all its requests traced.
	var parent, state []byte
	if x.grant.decision.Allowed && x.grant.cost == oneToken || x.server.trusted(x.conn.peer()) {
		parent, state = single(x.headers.traceParent), single(x.headers.traceState)
	}
	return x.server.Tracer.Request(name, x.began, parent, state)
}

// endTrace sends a request's span and its phases. They have no API key, search term or cursor.
func endTrace(x *exchange, root *tracing.Span, r *Record, took time.Duration) {
	part := func(name string, p cache.Span, of *tracing.Span) *tracing.Span { return of.Part(name, p.Began, p.Took) }
	fill := x.times()
	part("key", x.phases[phaseKey], root)
	part("memory", x.phases[phaseMemory], root)
	part("limit", x.phases[phaseLimit], root)
	part("redis", fill.Redis, root)
	part("query", fill.Query, part("fill", fill.Fill, root))
	root.End(took, r.Status, map[string]any{
		"http.route": r.Route, "listedge.request_id": r.RequestID, "listedge.outcome": r.Outcome,
		"listedge.key_id": r.KeyID, "listedge.workspace_id": r.WorkspaceID,
		"listedge.limit_source": r.Limit, "listedge.limit_refused_by": r.RefusedBy, "listedge.cache_status": r.CacheStatus,
	})
}

// single returns the value of a header that was sent once. It returns nil if the header
// was sent several times, because the values may differ.
func single(lines [][]byte) []byte {
	if len(lines) == 1 {
		return lines[0]
	}
	return nil
}
