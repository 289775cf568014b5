package edge

import (
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"
)

// requestLog keeps the latest requests of each class, so that an operator can look one
// up by its id. Each class has its own ring, so that a flood of one class, for example of
// 429s, does not evict entries of another.
type requestLog [logClasses]ring

// logClass is why a request is logged.
type logClass uint8

const (
	failed  logClass = iota // 5xx, a stale page, a slow response
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

type ring struct {
	mu      sync.Mutex // guards the fields below
	entries [entriesPerRing]Record
	n       uint64 // entries added so far
}

// AccessLog says which classes of requests are also written to the log as lines.
// Failures of the service are always written: internal errors each, of the others one a second
// of each kind.
type AccessLog string

// The access logs; any other value is none.
const (
	LogErrors  AccessLog = "errors"  // errors, stale pages and slow responses
	LogSampled AccessLog = "sampled" // these, misses and a sample of hits
)

func (l AccessLog) has(class logClass) bool {
	return l == LogSampled || l == LogErrors && (class == failed || class == refused)
}

// clip returns a copy of the text's first limit bytes, with an ellipsis if it is
// longer. A copy does not keep the whole text in memory.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return strings.Clone(text)
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

func (l *requestLog) add(class logClass, e *Record) {
	r := &l[class]
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries[r.n%entriesPerRing] = *e
	r.n++
}

func (r *ring) find(id string, records []Record) []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.entries[:min(r.n, entriesPerRing)] {
		if r.entries[i].RequestID == id {
			records = append(records, r.entries[i])
		}
	}
	return records
}

// Record is a request in the request log, and a line of the access log. It contains no API key,
// search term or cursor. Its texts have bounds, whatever a client sends. Times are in seconds.
type Record struct {
	RequestID   string    `json:"requestId"`
	Arrived     time.Time `json:"arrived"`
	Route       string    `json:"route"`
	Status      int       `json:"status"`
	Outcome     string    `json:"outcome"`
	Bytes       int       `json:"bytes"`  // of the body, as it was sent
	Client      string    `json:"client"` // its address, behind trusted proxies
	Agent       string    `json:"agent"`  // the beginning of its User-Agent
	KeyPrefix   string    `json:"keyPrefix"`
	KeyID       string    `json:"keyId"`
	WorkspaceID string    `json:"workspaceId"`
	Message     string    `json:"message,omitempty"` // the error message that the client got
	Cause       string    `json:"cause,omitempty"`   // why there was an error or a stale page

	Limit           string  `json:"limit,omitempty"`           // who decided: a limiter.Source; empty = the limiter was not called
	RefusedBy       string  `json:"refusedBy,omitempty"`       // key, workspace or quota
	RetryAfter      float64 `json:"retryAfter,omitempty"`      // seconds
	RateLimitPolicy string  `json:"rateLimitPolicy,omitempty"` // the header without quotes: the rates and bursts
	RateLimit       string  `json:"rateLimit,omitempty"`       // likewise: what remained

	Tier        string  `json:"tier,omitempty"` // memory, redis or origin; empty = there was no page
	CacheStatus string  `json:"cacheStatus,omitempty"`
	Missed      string  `json:"missed,omitempty"`   // why memory did not have it
	ProofAge    float64 `json:"proofAge,omitempty"` // seconds since the page was last known to equal the database

	// How long the request and its phases took; 0 = no time, or not timed. Fill is a part of wait, and
	// query is a part of fill, unless another request began the fill (shared).
	Took       float64 `json:"took"`
	KeyTook    float64 `json:"keyTook,omitempty"`
	MemoryTook float64 `json:"memoryTook,omitempty"`
	LimitTook  float64 `json:"limitTook,omitempty"`
	WaitTook   float64 `json:"waitTook,omitempty"` // for a page that was not in memory
	RedisTook  float64 `json:"redisTook,omitempty"`
	FillTook   float64 `json:"fillTook,omitempty"`
	QueryTook  float64 `json:"queryTook,omitempty"`
	Shared     bool    `json:"shared,omitempty"`
}

// attributes are the fields for a line of the log, as the record's JSON has them.
func (r *Record) attributes() (all []slog.Attr) {
	fields := reflect.ValueOf(r).Elem()
	for field, value := range fields.Fields() {
		if name, optional := strings.CutSuffix(field.Tag.Get("json"), ",omitempty"); !optional || !value.IsZero() {
			all = append(all, slog.Any(name, value.Interface()))
		}
	}
	return all
}
