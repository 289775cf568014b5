// Package limiter admits requests by token bucket: over all nodes of a fleet,
// and over any span of t seconds, at most burst + rate*t of them. The buckets
// live in Redis, each visited by one script call, or, where there is no Redis,
// in this process by the same arithmetic. A request takes one token from its
// key's bucket and one from its workspace's, or none from either, and waits for
// Redis no longer than a small budget: while Redis is slow or gone, this node
// decides alone, starting from the last level it saw, and tells Redis what it
// spent once Redis is back.
//
//	Take ──┬─ no Redis ───────────────────────────── in-process store
//	       ├─ breaker closed ── flight, 10 ms ─────── Redis (script)
//	       └─ breaker open, or budget missed ──────── the handle's local bucket
//	                                                     │ debt, on return
//	Return ── bounded queue ── keeper (probe, debts) ────┴──> Redis
//
// Bucket handles are where leases will live, and the flight is what will be
// shared by all who wait for one bucket.
package limiter

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

// The times of the remote call and its failure policy.
const (
	// DefaultBudget is what a request waits for Redis: several round trips
	// within a data centre, and less than anyone notices.
	DefaultBudget = 10 * time.Millisecond

	// flightTimeout ends a visit to Redis that no request waits for any more.
	// Longer than the budget, so that a connection can be made, TLS included,
	// and be warm for those who come after.
	flightTimeout = 250 * time.Millisecond

	// probeEvery is how often Redis is tried while the breaker is open: by the
	// keeper, so that no request pays for it.
	probeEvery = 250 * time.Millisecond

	// tripAfter failures in a row open the breaker; one success closes it.
	tripAfter = 3

	// returnQueue bounds the tokens on their way back to Redis.
	returnQueue = 1024

	defaultMaxBuckets = 1 << 20
)

var errBudget = errors.New("limiter: redis missed the budget")

// Options of a Limiter. The zero value is a working single node.
type Options struct {
	// Redis is nil for a single node. A client of its own is best, with
	// ContextTimeoutEnabled and MaxRetries -1: a retried script charges twice.
	// The limiter does not close it.
	Redis redis.UniversalClient

	Budget     time.Duration    // the longest a Take waits for Redis; 0 = DefaultBudget
	MaxBuckets int              // bound of the in-process store; 0 = about a million
	Clock      func() time.Time // of in-process buckets; nil = time.Now (Redis goes by its own)
	Logger     *slog.Logger     // nil = silent
}

// Limiter decides who may pass. All methods may be called from any goroutine.
type Limiter struct {
	budget time.Duration
	clock  func() time.Time
	start  time.Time
	logger *slog.Logger
	tally  tally
	pairs  sync.Pool // *pair, so that an in-process Take allocates nothing

	local    *localStore // no Redis: the buckets; else nil
	shared   store       // Redis: the buckets; else nil
	redis    *redisStore // shared, for its counts; nil in tests with a store of their own
	fallback fallback

	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	away    atomic.Bool // the breaker is not closed: Redis is left alone
	outage  outage

	returns chan *Bucket
	wake    chan struct{} // something to settle or to probe
	stop    chan struct{}
	kept    chan struct{} // closed when the keeper has ended

	mu      sync.RWMutex // guards closed; held for reading while a flight starts
	closed  bool
	flights sync.WaitGroup

	owingMu sync.Mutex           // guards owing
	owing   map[*Bucket]struct{} // spent locally, not yet debited in Redis
}

// New makes a limiter. It makes no call to Redis: a node starts while Redis is down.
func New(o Options) *Limiter {
	if o.Redis == nil {
		return newLimiter(o, nil)
	}
	r := newRedisStore(o.Redis)
	l := newLimiter(o, r)
	l.redis = r
	return l
}

func newLimiter(o Options, shared store) *Limiter {
	l := &Limiter{budget: o.Budget, clock: o.Clock, logger: o.Logger, shared: shared}
	if l.budget <= 0 {
		l.budget = DefaultBudget
	}
	if l.clock == nil {
		l.clock = time.Now
	}
	if l.logger == nil {
		l.logger = slog.New(slog.DiscardHandler)
	}
	l.start = l.clock()
	l.pairs.New = func() any { return new(pair) }
	if shared == nil {
		if o.MaxBuckets <= 0 {
			o.MaxBuckets = defaultMaxBuckets
		}
		l.local = newLocalStore(l.now, o.MaxBuckets)
		return l
	}
	l.fallback = fallback{l}
	l.breaker = l.newBreaker()
	l.owing = make(map[*Bucket]struct{})
	l.returns = make(chan *Bucket, returnQueue)
	l.wake = make(chan struct{}, 1)
	l.stop, l.kept = make(chan struct{}), make(chan struct{})
	go l.keep()
	return l
}

// now is this node's time in microseconds since the limiter was made. It is
// taken from Go's monotonic clock and does not follow a step of the wall clock.
func (l *Limiter) now() int64 { return int64(l.clock().Sub(l.start) / time.Microsecond) }

// Bucket makes a handle: see KeyBucket and WorkspaceBucket for the keys.
func (l *Limiter) Bucket(key string, p Policy) *Bucket {
	b := &Bucket{key: key}
	b.policy.Store(&p)
	return b
}

// Take takes one token from each bucket that is not nil, or none from any.
// A nil bucket is unlimited. It never waits longer than the budget.
func (l *Limiter) Take(key, workspace *Bucket) Decision {
	d := l.decide(key, workspace)
	l.tally.count(d)
	return d
}

func (l *Limiter) decide(key, workspace *Bucket) Decision {
	if key == nil && workspace == nil {
		return Decision{Allowed: true, Source: SourceUnlimited}
	}
	p := l.pairs.Get().(*pair)
	defer l.pairs.Put(p)
	if blocked := p.set(key, workspace); blocked != Neither {
		return Decision{RetryAfter: blockedRetry, Refused: blocked, Source: SourceBlocked}
	}
	if l.shared == nil {
		_ = p.take(context.Background(), l.local) // never fails
		return p.decision(SourceMemory)
	}
	if !l.away.Load() {
		if d, ok := l.ask(*p); ok {
			return d
		}
	}
	_ = p.take(context.Background(), l.fallback) // never fails
	return p.decision(SourceLocalFallback)
}

// Return gives the tokens of a Take back, for a request that turned out to cost
// nothing. It never waits for Redis and never fills a bucket above its burst.
// Tokens that the queue to Redis has no room for are dropped and counted.
func (l *Limiter) Return(key, workspace *Bucket) {
	if workspace == key {
		workspace = nil
	}
	for _, b := range [...]*Bucket{key, workspace} {
		if b != nil {
			l.giveBack(b)
		}
	}
}

func (l *Limiter) giveBack(b *Bucket) {
	policy := b.Policy()
	if policy.r == 0 {
		return
	}
	if l.shared != nil && !l.away.Load() && !b.owes() {
		l.queueReturn(b)
		return
	}
	p := l.pairs.Get().(*pair)
	defer l.pairs.Put(p)
	p.calls[0] = call{bucket: b, policy: policy, ret: 1}
	l.tally.returned.Add(1)
	if l.shared == nil {
		_ = l.local.visit(context.Background(), p.calls[:1])
		return
	}
	_ = l.fallback.visit(context.Background(), p.calls[:1])
}

func (l *Limiter) queueReturn(b *Bucket) {
	select {
	case l.returns <- b:
	default:
		l.tally.dropped.Add(1)
	}
}

// Close waits for the visits under way, sends what is still owed to Redis, and
// ends the limiter's goroutines. Where ctx ends first they end by their own
// timeouts. A Take after Close is decided by this node alone.
func (l *Limiter) Close(ctx context.Context) error {
	if l.shared == nil {
		return nil
	}
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	ended := make(chan struct{})
	go func() { // ends with the last flight, at most flightTimeout later
		defer close(ended)
		l.flights.Wait()
		if !again {
			close(l.stop)
		}
		<-l.kept
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
