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

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/limiter"
	"listedge/metrics"
)

// requestLog keeps the last requests that somebody may ask about, in at most
// requestLogBytes:
//
//	connection ──► its shard ──► a ring for each class ──► entry
//
// Each class has rings of its own, so that a flood of one, of 429s for example,
// evicts no other. Connections take shards in turn, so that processors rarely
// contend for one.
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
	hitsPerSample  = 64                     // of a connection; the first of them is logged
	entriesPerRing = 64                     // × 16 shards × 4 classes are all entries
	maxCause       = 1 << 10                // bytes of an error's text
	// requestLogBytes bounds everything: entries of less than 500 bytes each, whose
	// pointers lead to static data only, and the causes of failures.
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

// logEntry is an exchange without what the client sent, but for the request id:
// it has a fixed size, and keeps neither a page nor a key in memory.
type logEntry struct {
	id     [maxRequestID]byte
	idSize uint8

	route   metrics.Route
	outcome metrics.Outcome
	status  int
	began   time.Time
	took    time.Duration
	problem *problem // nil = none
	cause   string   // at most maxCause

	known          bool // key and workspace are set
	key, workspace uuid.UUID

	limited                    bool // decision and buckets are set
	decision                   limiter.Decision
	keyBucket, workspaceBucket BucketRecord
	hasWorkspaceBucket         bool

	hasPage            bool // tier, cacheStatus and age are set
	tier               cache.Source
	cacheStatus        []byte // static
	age                time.Duration
	shared             bool
	phases             [phases]time.Duration
	redis, fill, query time.Duration
}

// class decides whether the exchange is logged. A document counts as a hit.
func (x *exchange) class(status int, took time.Duration) logClass {
	switch {
	case x.failure.problem.isOurs() || x.result.Err != nil || took >= slowFrom:
		return failed
	case status >= 400:
		return refused
	case !x.phases[phaseForward].Began.IsZero():
		return missed
	}
	if x.conn.hits++; x.conn.hits%hitsPerSample == 1 {
		return sampled
	}
	return unlogged
}

// logRequest adds an exchange to the request log.
func (s *Server) logRequest(x *exchange, class logClass, status int, took time.Duration) {
	fill := fillTimes(&x.result)
	e := logEntry{route: x.route, outcome: x.outcome, status: status, began: x.began, took: took, problem: x.failure.problem,
		shared: x.result.Collapsed, redis: fill.Redis.Took, fill: fill.Fill.Took, query: fill.Query.Took}
	e.idSize = uint8(copy(e.id[:], x.id))
	for i := range x.phases {
		e.phases[i] = x.phases[i].Took
	}
	if cause := cmp.Or(x.failure.cause, x.result.Err); cause != nil && class == failed {
		e.cause = clip(cause.Error(), maxCause)
	}
	if x.known != nil {
		key := &x.known.Key
		e.known, e.key, e.workspace = true, key.ID, key.Workspace
		if x.limited {
			e.limited, e.decision = true, x.decision
			e.keyBucket = bucketRecord(key.Limit, x.client.bucket.LevelAt(x.now).Remaining)
			if e.hasWorkspaceBucket = key.WorkspaceLimit.Set; e.hasWorkspaceBucket {
				e.workspaceBucket = bucketRecord(key.WorkspaceLimit, x.client.workspaceBucket.LevelAt(x.now).Remaining)
			}
		}
	}
	if x.result.Entry != nil {
		e.hasPage, e.tier, e.cacheStatus, e.age = true, x.result.Source, cacheStatus(&x.result), x.result.Age
	}
	s.addToLog(x.conn.log, class, &e)
}

// addToLog adds the entry to the request log, and to the access log if that has
// its class.
func (s *Server) addToLog(to *logShard, class logClass, e *logEntry) {
	to.add(class, e)
	if s.accessLog.has(class) {
		r := e.record()
		s.logger.LogAttrs(context.Background(), slog.LevelInfo, "request", r.attributes()...)
	}
}

// clip returns the text up to that many bytes, and a sign if that is not all. It
// keeps no more in memory.
func clip(text string, most int) string {
	if len(text) <= most {
		return strings.Clone(text)
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// shard returns the one for another connection.
func (l *requestLog) shard() *logShard { return &l.shards[l.next.Add(1)%uint32(len(l.shards))] }

func (s *logShard) add(class logClass, e *logEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.rings[class]
	r.entries[r.n%entriesPerRing] = *e
	r.n++
}

// Records are the logged requests of that id, the newest first. There may be
// several: clients choose ids.
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
