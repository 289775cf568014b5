package edge

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"listedge/limiter"
	"listedge/origin"
)

// Record is what a node remembers of a request, as it tells it: no key, no
// search term and no cursor is in it. Times are in seconds.
type Record struct {
	RequestID string    `json:"requestId"`
	Time      time.Time `json:"time"` // of its arrival
	Route     string    `json:"route"`
	Status    int       `json:"status"`
	Outcome   string    `json:"outcome"`

	Message string `json:"message,omitempty"` // what the client was told, of an error
	Cause   string `json:"cause,omitempty"`   // of an error, or of a page that stood in

	KeyID       string `json:"keyId,omitempty"`
	WorkspaceID string `json:"workspaceId,omitempty"`

	Limit *LimitRecord `json:"limit,omitempty"` // nil = it did not come to that
	Page  *PageRecord  `json:"page,omitempty"`  // nil = there was none
	Took  TimesRecord  `json:"took"`
}

// LimitRecord is what the limiter said.
type LimitRecord struct {
	Allowed    bool          `json:"allowed"`
	Source     string        `json:"source"`               // who decided, as limiter.Source has it
	RefusedBy  string        `json:"refusedBy,omitempty"`  // key or workspace
	RetryAfter float64       `json:"retryAfter,omitempty"` // seconds
	Key        BucketRecord  `json:"key"`
	Workspace  *BucketRecord `json:"workspace,omitempty"` // nil = it has none
}

// BucketRecord is a bucket and what was left in it after the decision.
type BucketRecord struct {
	Rate      float64 `json:"rate"` // tokens a second
	Burst     int64   `json:"burst"`
	Remaining int64   `json:"remaining"`
}

// PageRecord is how the page was found.
type PageRecord struct {
	Tier        string  `json:"tier"` // memory, redis or origin
	CacheStatus string  `json:"cacheStatus"`
	ProofAge    float64 `json:"proofAge"` // seconds since it was known to equal the database
}

// TimesRecord is where the time went; 0 = nowhere, or too little to be timed.
// Fill is a part of Wait, and Query of Fill, unless another request's flight
// had begun before.
type TimesRecord struct {
	Total  float64 `json:"total"`
	Key    float64 `json:"key"`
	Limit  float64 `json:"limit"`
	Memory float64 `json:"memory"`
	Wait   float64 `json:"wait"` // for the page, once it was not in memory
	Redis  float64 `json:"redis"`
	Fill   float64 `json:"fill"`
	Query  float64 `json:"query"`
	Shared bool    `json:"shared"` // redis, fill and query are another request's, which this one waited for
}

func (e *entry) record() Record {
	r := Record{
		RequestID: string(e.id[:e.idSize]), Time: e.began.UTC().Round(0), Route: e.route.String(), Status: e.status, Outcome: e.outcome.String(), Cause: e.cause,
		Took: TimesRecord{
			Total: e.took.Seconds(), Key: e.steps[stepKey].Seconds(), Limit: e.steps[stepLimit].Seconds(),
			Memory: e.steps[stepMemory].Seconds(), Wait: e.steps[stepForward].Seconds(),
			Redis: e.redis.Seconds(), Fill: e.fill.Seconds(), Query: e.query.Seconds(), Shared: e.shared,
		},
	}
	if e.problem != nil {
		r.Message = e.problem.message
	}
	if e.known {
		r.KeyID, r.WorkspaceID = e.key.String(), e.workspace.String()
	}
	if e.limited {
		r.Limit = e.limit()
	}
	if e.looked {
		r.Page = &PageRecord{Tier: e.tier.String(), CacheStatus: string(e.cacheStatus), ProofAge: e.age.Seconds()}
	}
	return r
}

// limitOutcome is the part of a limiter.Decision that the journal keeps.
type limitOutcome struct {
	Allowed    bool
	Refused    limiter.Which
	Source     limiter.Source
	RetryAfter time.Duration
}

func (e *entry) limit() *LimitRecord {
	l := &LimitRecord{Allowed: e.limits.Allowed, Source: e.limits.Source.String(), RetryAfter: e.limits.RetryAfter.Seconds(), Key: e.keyBucket}
	if e.limits.Refused != limiter.Neither {
		l.RefusedBy = e.limits.Refused.String()
	}
	if e.hasWorkspaceBucket {
		w := e.workspaceBucket
		l.Workspace = &w
	}
	return l
}

func bucketRecord(l origin.Limit, left int64) BucketRecord {
	return BucketRecord{l.Rate, l.Burst, left}
}

// Records are what is remembered of the requests of that id, newest first.
func (s *Server) Records(id string) []Record {
	records := []Record{}
	for _, e := range s.journal.find(id) {
		records = append(records, e.record())
	}
	slices.SortFunc(records, func(a, b Record) int { return b.Time.Compare(a.Time) })
	return records
}

// AccessLog is which requests have a line in the log, of those the journal
// remembers. Failures that are the service's are logged anyway, once a second
// and kind.
type AccessLog string

// The access logs.
const (
	LogOff     AccessLog = "off"
	LogErrors  AccessLog = "errors"  // errors, pages that stood in, and slow answers
	LogSampled AccessLog = "sampled" // these, pages that were not in memory, and a sample of hits
)

// has says whether requests of the kind are logged.
func (l AccessLog) has(k kind) bool {
	return l == LogSampled || l == LogErrors && (k == failed || k == refused)
}

// keep has a request remembered and, if such are, logged.
func (s *Server) keep(to *sheet, k kind, e *entry) {
	to.keep(k, e)
	if s.accessLog.has(k) {
		r := e.record()
		s.logger.LogAttrs(context.Background(), slog.LevelInfo, "request", r.attributes()...)
	}
}

// attributes are the record as one line of the log. Times are in seconds.
func (r *Record) attributes() []slog.Attr {
	all := []slog.Attr{
		slog.String("requestId", r.RequestID), slog.String("route", r.Route), slog.Int("status", r.Status), slog.String("outcome", r.Outcome),
	}
	if r.KeyID != "" {
		all = append(all, slog.String("keyId", r.KeyID), slog.String("workspaceId", r.WorkspaceID))
	}
	if r.Limit != nil {
		all = append(all, slog.String("limit", r.Limit.Source), slog.Int64("keyRemaining", r.Limit.Key.Remaining))
		if r.Limit.Workspace != nil {
			all = append(all, slog.Int64("workspaceRemaining", r.Limit.Workspace.Remaining))
		}
		if r.Limit.RefusedBy != "" {
			all = append(all, slog.String("refusedBy", r.Limit.RefusedBy), slog.Float64("retryAfter", r.Limit.RetryAfter))
		}
	}
	if r.Page != nil {
		all = append(all, slog.String("cacheStatus", r.Page.CacheStatus), slog.Float64("proofAge", r.Page.ProofAge))
	}
	if r.Cause != "" {
		all = append(all, slog.String("cause", r.Cause))
	}
	all = append(all, slog.Float64("took", r.Took.Total))
	for _, part := range []struct {
		name string
		took float64
	}{{"keyTook", r.Took.Key}, {"limitTook", r.Took.Limit}, {"waitTook", r.Took.Wait}, {"redisTook", r.Took.Redis}, {"fillTook", r.Took.Fill}, {"queryTook", r.Took.Query}} {
		if part.took > 0 {
			all = append(all, slog.Float64(part.name, part.took))
		}
	}
	return all
}
