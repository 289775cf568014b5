package edge

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"listedge/limiter"
)

// requestLog keeps the latest requests of each class, so that an operator can look one
// up by its id. It occupies at most requestLogBytes:
//
//	connection ──► its shard ──► a ring for each class ──► entry
//
// Each class has its own ring, so that a flood of one class, for example of 429s,
// does not evict entries of another. Connections are spread over the shards in turn,
// so that processors rarely contend for a shard's mutex.
type requestLog struct {
	shards [16]logShard
	next   atomic.Uint32
}

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
	entriesPerRing = 64                     // × 16 shards × 4 classes = 4096 entries
	maxCause       = 900                    // bytes of an error's text
	// requestLogBytes bounds the memory of the log: entries of less than 540 bytes
	// each, and the causes of failures. All other texts are static.
	requestLogBytes = 3 << 20
)

type logShard struct {
	mu    sync.Mutex // guards rings
	rings [logClasses]ring
}

type ring struct {
	entries [entriesPerRing]logEntry
	n       uint64 // entries added so far
}

// logEntry is a record whose request id is stored in the entry, so that an entry has a
// fixed size. Its texts are static, except for the cause.
type logEntry struct {
	Record
	id     [maxRequestID]byte
	idSize uint8
}

func (e *logEntry) setID(id []byte) { e.idSize = uint8(copy(e.id[:], id)) }

// record returns the entry's record with a copy of the request id.
func (e *logEntry) record() Record {
	r := e.Record
	r.RequestID = string(e.id[:e.idSize])
	return r
}

// logRequest adds an exchange to the request log.
func (s *Server) logRequest(x *exchange, class logClass, status int, took time.Duration) {
	fill := fillTimes(&x.result)
	e := logEntry{Record: Record{Time: x.began.UTC().Round(0), Route: x.route.String(), Status: status, Outcome: x.outcome.String(), Took: TimesRecord{
		Total: took.Seconds(), Key: x.phases[phaseKey].Took.Seconds(), Limit: x.phases[phaseLimit].Took.Seconds(),
		Memory: x.phases[phaseMemory].Took.Seconds(), Wait: x.phases[phaseForward].Took.Seconds(),
		Redis: fill.Redis.Took.Seconds(), Fill: fill.Fill.Took.Seconds(), Query: fill.Query.Took.Seconds(), Shared: x.result.Collapsed,
	}}}
	e.setID(x.id)
	if x.failure.problem != nil {
		e.Message = x.failure.problem.message
	}
	if cause := cmp.Or(x.failure.cause, x.result.Err); cause != nil && class == failed {
		e.Cause = clip(cause.Error(), maxCause)
	}
	if x.keyEntry != nil {
		e.KeyID, e.WorkspaceID = x.keyEntry.Key.ID, x.keyEntry.Key.Workspace
	}
	if x.cost != notLimited {
		e.Limit = x.limitRecord()
	}
	if x.result.Entry != nil {
		e.Page = PageRecord{Tier: x.result.Source.String(), CacheStatus: cacheStatus(&x.result), ProofAge: x.result.Age.Seconds()}
		if i := x.result.Invalidation; i != nil {
			e.Page.Invalidation = InvalidationRecord{Concern: i.Concern.String(), Transaction: i.XID, Term: i.Position.Term, N: i.Position.N, CommittedAt: i.CommittedAt}
		}
	}
	s.addToLog(x.conn.log, class, &e)
}

func (x *exchange) limitRecord() LimitRecord {
	d, key := &x.decision, &x.keyEntry.Key
	l := LimitRecord{Allowed: d.Allowed, Source: d.Source.String(), RetryAfter: d.RetryAfter.Seconds(),
		Key: BucketRecord{key.Limit.Rate, int32(key.Limit.Burst), int32(d.Key.Remaining)}}
	if d.Refused != limiter.Neither {
		l.RefusedBy = d.Refused.String()
	}
	if key.WorkspaceLimit.Set {
		l.Workspace = BucketRecord{key.WorkspaceLimit.Rate, int32(key.WorkspaceLimit.Burst), int32(d.Workspace.Remaining)}
	}
	if q := &key.Quota; q.Period != 0 {
		l.Quota = QuotaRecord{uint32(q.Requests), uint32(d.Quota.Remaining), q.Period}
	}
	return l
}

// AccessLog says which classes of requests are also written to the log as lines.
// Failures of the service are always written, one a second of each kind.
type AccessLog string

// The access logs; any other value is none.
const (
	LogErrors  AccessLog = "errors"  // errors, stale pages and slow responses
	LogSampled AccessLog = "sampled" // these, misses and a sample of hits
)

func (l AccessLog) has(class logClass) bool {
	return l == LogSampled || l == LogErrors && (class == failed || class == refused)
}

// addToLog adds the entry to the request log, and writes a line if the access log
// includes its class.
func (s *Server) addToLog(to *logShard, class logClass, e *logEntry) {
	to.add(class, e)
	if s.accessLog.has(class) {
		r := e.record()
		s.logger.LogAttrs(context.Background(), slog.LevelInfo, "request", r.attributes()...)
	}
}

// clip returns a copy of the text's first limit bytes, with an ellipsis if it is
// longer. A copy does not keep the whole text in memory.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return strings.Clone(text)
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

// shard returns the shard for a new connection.
func (l *requestLog) shard() *logShard { return &l.shards[l.next.Add(1)%uint32(len(l.shards))] }

func (s *logShard) add(class logClass, e *logEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.rings[class]
	r.entries[r.n%entriesPerRing] = *e
	r.n++
}

// Records returns the logged requests with that id, the newest first. Several requests
// may have one id, because clients choose ids.
func (s *Server) Records(id string) []Record {
	records := []Record{}
	for i := range s.log.shards {
		records = s.log.shards[i].find(id, records)
	}
	slices.SortFunc(records, func(a, b Record) int { return b.Time.Compare(a.Time) })
	return records
}

func (s *logShard) find(id string, records []Record) []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	for class := range s.rings {
		r := &s.rings[class]
		for i := range r.entries[:min(r.n, entriesPerRing)] {
			if e := &r.entries[i]; string(e.id[:e.idSize]) == id {
				records = append(records, e.record())
			}
		}
	}
	return records
}
