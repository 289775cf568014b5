package edge

import (
	"context"
	"log/slog"
)

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
