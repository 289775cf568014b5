package edge

import (
	"sync"
	"sync/atomic"
	"time"

	"listedge/cache"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
)

// journal remembers the last requests that somebody may ask about, in a fixed
// space of 2 MB:
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
)

type sheet struct {
	mu    sync.Mutex // guards rings
	rings [kinds]ring
}

type ring struct {
	entries [entriesPerRing]entry
	n       uint64 // kept so far
}

// entry is an exchange as it is remembered: what is costly to tell is told when
// somebody asks.
type entry struct {
	id     [maxRequestID]byte
	idSize uint8

	route   metrics.Route
	outcome metrics.Outcome
	status  int
	began   time.Time
	took    time.Duration
	failed  failure

	key                    *origin.Key // nil = not known
	limited                bool
	limits                 limiter.Decision
	keyLeft, workspaceLeft int64 // tokens

	looked bool // page is set
	page   cache.Result
	steps  [steps]cache.Span
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
	e := entry{route: x.route, outcome: x.outcome, status: status, began: x.began, took: took, failed: x.failed,
		limited: x.limited, limits: x.limits, page: x.page, steps: x.steps}
	e.setID(x.id)
	if x.known != nil {
		e.key = &x.known.Key
	}
	if x.limited {
		e.keyLeft, e.workspaceLeft = x.client.bucket.LevelAt(x.now).Remaining, x.client.workspaceBucket.LevelAt(x.now).Remaining
	}
	e.looked, e.page.Page = x.page.Page != nil, nil // a page is large
	s.keep(x.conn.sheet, k, &e)
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
