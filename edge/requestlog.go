package edge

import (
	"cmp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/metrics"
)

// journal remembers the last requests that somebody may ask about, in at most
// journalBytes:
//
//	connection ──► its sheet ──► a ring for each kind ──► entry
//
// Kinds have rings of their own, so that a flood of one, of 429s say, leaves
// the others be. Connections take turns at the sheets, so that processors
// seldom meet there.
type journal struct {
	sheets [16]sheet
	next   atomic.Uint32
}

// kind is why a request is remembered.
type kind uint8

const (
	failed    kind = iota // 5xx, a page that stood in, a slow answer
	refused               // any other error
	forwarded             // a page that was not in memory
	sampled               // one of many hits
	kinds
	forgotten
)

const (
	// slowFrom is how long an answer takes that is remembered whatever it is.
	slowFrom = 100 * time.Millisecond
	// hitsPerEntry: of so many hits on a connection the first is remembered.
	hitsPerEntry = 64
	// entriesPerRing × 16 sheets × 4 kinds is what the journal holds.
	entriesPerRing = 64
	// maxCause is how much of an error's text is remembered, in bytes.
	maxCause = 1 << 10
	// journalBytes bounds all of it: entries of less than 500 bytes each, which
	// only hold pointers to what is static, and the causes of failures.
	journalBytes = 3 << 20
)

type sheet struct {
	mu    sync.Mutex // guards rings
	rings [kinds]ring
}

type ring struct {
	entries [entriesPerRing]entry
	n       uint64 // kept so far
}

// entry is an exchange as it is remembered. What the client sent is not in it,
// but for the request id: nothing in it can grow, and it keeps alive neither a
// page nor what the keyring has forgotten.
type entry struct {
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

	limited                    bool // limits and buckets are set
	limits                     limitOutcome
	keyBucket, workspaceBucket BucketRecord
	hasWorkspaceBucket         bool

	looked             bool // tier, cacheStatus and age are set
	tier               cache.Source
	cacheStatus        []byte // static
	age                time.Duration
	shared             bool
	steps              [steps]time.Duration
	redis, fill, query time.Duration
}

func (e *entry) setID(id []byte) { e.idSize = uint8(copy(e.id[:], id)) }

// kind decides whether the exchange is remembered. An answer that is neither
// page nor error, of the documentation, counts as a hit.
func (x *exchange) kind(status int, took time.Duration) kind {
	switch {
	case x.failed.problem.ours() || x.page.Err != nil || took >= slowFrom:
		return failed
	case status >= 400:
		return refused
	case !x.steps[stepForward].Began.IsZero():
		return forwarded
	}
	c := x.conn
	if c.hits++; c.hits%hitsPerEntry == 1 {
		return sampled
	}
	return forgotten
}

// remember keeps what there is to know of an exchange.
func (s *Server) remember(x *exchange, k kind, status int, took time.Duration) {
	flight := flightOf(&x.page)
	e := entry{route: x.route, outcome: x.outcome, status: status, began: x.began, took: took, problem: x.failed.problem,
		shared: x.page.Collapsed, redis: flight.Redis.Took, fill: flight.Fill.Took, query: flight.Query.Took}
	e.setID(x.id)
	for i := range x.steps {
		e.steps[i] = x.steps[i].Took
	}
	if cause := cmp.Or(x.failed.cause, x.page.Err); cause != nil && k == failed {
		e.cause = clip(cause.Error(), maxCause)
	}
	if x.known != nil {
		key := &x.known.Key
		e.known, e.key, e.workspace = true, key.ID, key.Workspace
		if x.limited {
			e.limited, e.limits = true, limitOutcome{x.limits.Allowed, x.limits.Refused, x.limits.Source, x.limits.RetryAfter}
			e.keyBucket = bucketRecord(key.Limit, x.limits.Key.Remaining)
			if e.hasWorkspaceBucket = key.WorkspaceLimit.Set; e.hasWorkspaceBucket {
				e.workspaceBucket = bucketRecord(key.WorkspaceLimit, x.limits.Workspace.Remaining)
			}
		}
	}
	if x.page.Entry != nil {
		e.looked, e.tier, e.cacheStatus, e.age = true, x.page.Source, cacheStatus(&x.page), x.page.Age
	}
	s.keep(x.conn.sheet, k, &e)
}

// clip returns the text up to that many bytes, and a sign if that is not all. It
// keeps no more than that alive.
func clip(text string, most int) string {
	if len(text) <= most {
		return strings.Clone(text)
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// sheet returns the one for another connection.
func (j *journal) sheet() *sheet { return &j.sheets[j.next.Add(1)%uint32(len(j.sheets))] }

func (s *sheet) keep(k kind, e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.rings[k]
	r.entries[r.n%entriesPerRing] = *e
	r.n++
}

// find returns the entries of the requests of that id: several clients, or one
// that tries again, may have chosen the same.
func (j *journal) find(id string) (found []entry) {
	for i := range j.sheets {
		found = j.sheets[i].find(id, found)
	}
	return found
}

func (s *sheet) find(id string, found []entry) []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.rings {
		r := &s.rings[k]
		for i := range r.entries[:min(r.n, entriesPerRing)] {
			if e := &r.entries[i]; string(e.id[:e.idSize]) == id {
				found = append(found, *e)
			}
		}
	}
	return found
}
