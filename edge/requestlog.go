package edge

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"listedge/origin/apikey"
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

// Record is a request in the request log. It contains no API key, search term or cursor. Its
// texts have bounds, whatever a client sends. Times are in seconds.
type Record struct {
	RequestID string    `json:"requestId"`
	Time      time.Time `json:"time"` // of its arrival
	Route     string    `json:"route"`
	Status    int       `json:"status"`
	Outcome   string    `json:"outcome"`
	Bytes     int       `json:"bytes"`           // of the body, as it was sent
	Client    string    `json:"client"`          // its address, behind trusted proxies
	Agent     string    `json:"agent,omitempty"` // the beginning of its User-Agent
	KeyPrefix string    `json:"keyPrefix,omitempty"`

	Message string `json:"message,omitempty"` // the error message that the client got
	Cause   string `json:"cause,omitempty"`   // why there was an error or a stale page

	KeyID       string `json:"keyId,omitempty"`
	WorkspaceID string `json:"workspaceId,omitempty"`

	Limit LimitRecord `json:"limit,omitzero"` // zero = the limiter was not called
	Page  PageRecord  `json:"page,omitzero"`  // zero = there was no page
	Took  TimesRecord `json:"took"`
}

// LimitRecord is the limiter's decision.
type LimitRecord struct {
	Allowed    bool         `json:"allowed"`
	Source     string       `json:"source"`               // a limiter.Source
	RefusedBy  string       `json:"refusedBy,omitempty"`  // key, workspace or quota
	RetryAfter float64      `json:"retryAfter,omitempty"` // seconds
	Key        BucketRecord `json:"key"`
	Workspace  BucketRecord `json:"workspace,omitzero"` // zero = the workspace has no limit
	Quota      QuotaRecord  `json:"quota,omitzero"`     // zero = the workspace has no quota
}

// BucketRecord is a bucket after the decision. Its burst is at least 1.
type BucketRecord struct {
	Rate      float64 `json:"rate"` // tokens a second
	Burst     int32   `json:"burst"`
	Remaining int32   `json:"remaining"`
}

// QuotaRecord is a quota after the decision.
type QuotaRecord struct {
	Requests  uint32        `json:"requests"`
	Remaining uint32        `json:"remaining"`
	Period    apikey.Period `json:"period"`
}

// PageRecord is how the page was found.
type PageRecord struct {
	Tier        string  `json:"tier"` // memory, redis or origin
	CacheStatus string  `json:"cacheStatus"`
	Missed      string  `json:"missed,omitempty"` // why memory did not have it
	ProofAge    float64 `json:"proofAge"`         // seconds since it was last known to equal the database
}

// TimesRecord says how long the phases of a request took; 0 = no time, or not timed. Fill
// is a part of Wait, and Query is a part of Fill, unless another request began the fill.
type TimesRecord struct {
	Total  float64 `json:"total"`
	Key    float64 `json:"key"`
	Limit  float64 `json:"limit"`
	Memory float64 `json:"memory"`
	Wait   float64 `json:"wait"` // for a page that was not in memory
	Redis  float64 `json:"redis"`
	Fill   float64 `json:"fill"`
	Query  float64 `json:"query"`
	Shared bool    `json:"shared"` // another request began the fill
}

// attributes returns the attributes of the record's line in the log. Times are in seconds.
func (r *Record) attributes() []slog.Attr {
	all := []slog.Attr{
		slog.String("requestId", r.RequestID), slog.String("route", r.Route), slog.Int("status", r.Status), slog.String("outcome", r.Outcome),
		slog.Int("bytes", r.Bytes), slog.String("client", r.Client), slog.String("agent", r.Agent), slog.String("keyPrefix", r.KeyPrefix),
		slog.String("keyId", r.KeyID), slog.String("workspaceId", r.WorkspaceID),
	}
	limited, limit, took := r.Limit.Source != "", &r.Limit, &r.Took
	for _, a := range []struct {
		known bool
		slog.Attr
	}{
		{limited, slog.String("limit", limit.Source)}, {limited, slog.Int64("keyRemaining", int64(limit.Key.Remaining))},
		{limit.Workspace.Burst > 0, slog.Int64("workspaceRemaining", int64(limit.Workspace.Remaining))},
		{limit.Quota.Requests > 0, slog.Int64("quotaRemaining", int64(limit.Quota.Remaining))},
		{limit.RefusedBy != "", slog.String("refusedBy", limit.RefusedBy)}, {limit.RefusedBy != "", slog.Float64("retryAfter", limit.RetryAfter)},
		{r.Page.Tier != "", slog.String("cacheStatus", r.Page.CacheStatus)}, {r.Page.Tier != "", slog.Float64("proofAge", r.Page.ProofAge)},
		{r.Cause != "", slog.String("cause", r.Cause)},
		{true, slog.Float64("took", took.Total)}, {took.Key > 0, slog.Float64("keyTook", took.Key)}, {took.Limit > 0, slog.Float64("limitTook", took.Limit)},
		{took.Wait > 0, slog.Float64("waitTook", took.Wait)}, {took.Redis > 0, slog.Float64("redisTook", took.Redis)},
		{took.Fill > 0, slog.Float64("fillTook", took.Fill)}, {took.Query > 0, slog.Float64("queryTook", took.Query)},
	} {
		if a.known {
			all = append(all, a.Attr)
		}
	}
	return all
}
