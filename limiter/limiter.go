// Package limiter admits requests by token bucket: over all nodes of a fleet,
// and over any span of t seconds, at most burst + rate*t of them, counted when
// they are admitted. The buckets live in Redis; a node leases tokens from them
// and spends these without asking anybody. What is leased stays on the books of
// the shared bucket (level + held <= burst), which is what keeps the promise. A
// request takes one token from its key's bucket and one from its workspace's,
// or none from either. It never touches Redis, and waits for those who do no
// longer than a small budget, or two of Redis' round trips where that is longer:
// a request whose answer is late, and all while Redis is gone, are decided by
// this node alone, by its part of what it last saw, and it tells Redis what it
// spent. An answer that is late is used when it comes.
//
//	TakeAt: lease ─┬─ a token ────────────────────────────> admitted (ns, no lock)
//	               ├─ deny cache ─────────────────────────> refused
//	               └─ empty ── queue ── dispatcher ═══════> Redis (script), one
//	                             │       one per Redis node  pipeline a moment
//	                             └─ answer late, breaker open: local bucket,
//	                                 rate/N and burst/N ──> debt, on return
//	Return ── back into the lease, or with its next call
//	no Redis: the same leases, on buckets in this process, visited at once;
//	          sparse requests take their token from there themselves
//
// lease.go is a node's state machine, bucket.go (and token_bucket.lua) the
// shared bucket's: both without I/O or clock. dispatcher.go brings them together.
//
// The promise holds when requests are admitted, not only when tokens are
// debited. What it does not cover, each as small as could be known:
//
//   - A node that stands still (SIGSTOP, a suspended machine) between reading the
//     clock and spending admits, when it goes on, the requests that were at that
//     very point. What it holds, or was being granted, is not spent any more.
//   - A token given back (304) counts again from then on: as many requests more
//     as were under way at once and turned out to cost nothing.
//   - Redis loses a bucket (eviction, a flush, fail-over to a replica that lags):
//     it comes back full, one burst more. Its clock steps forward: what that says
//     the rate has brought, at most one burst, and what nodes held, at most a
//     quarter of one.
//   - While Redis is away, each node goes by the level it last saw and by how many
//     nodes were last counted: nodes that have come since, and tokens that others
//     had taken since, count on top, the latter at most one burst in all. So does
//     the part of a node that finds Redis again later than the others. A node
//     that has not counted for three seconds yet reckons with eight at least: a
//     fleet that starts without Redis, or whose Redis dies or refuses writes right
//     after, keeps the promise up to eight nodes, and admits n/8 of it with n. A
//     node that joins an older fleet that late adds an eighth. Where the burst is
//     of fewer tokens than there are nodes, each may have one.
package limiter

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/boottime"
)

// The times of the remote call and its failure policy.
const (
	// DefaultBudget is what a request waits for Redis: several round trips
	// within a data centre, and less than anyone notices. It is two of them where
	// Redis answers in more than half of it, and an eighth of a second at most.
	DefaultBudget = 10 * time.Millisecond

	// flightTimeout ends a visit to Redis: a silence that long is a failure of
	// Redis, and a shorter one only of the requests that waited.
	flightTimeout = 250 * time.Millisecond

	// probeEvery is how often Redis is tried while the breaker is open: by the
	// dispatcher, so that no request pays for it.
	probeEvery = 250 * time.Millisecond

	// tripAfter failures in a row open the breaker, and one where Redis has been
	// silent for a flightTimeout; one success closes it.
	tripAfter = 3

	// mostFlights pipelines are under way at a time. While one is, the next leaves
	// when it is full, or this long after the one before.
	mostFlights = 8
	gatherFor   = time.Millisecond

	defaultMaxBuckets = 1 << 20
)

// FailureMode is what happens to requests while Redis cannot be asked and no
// leased token is left.
type FailureMode uint8

const (
	FailLocal FailureMode = iota // this node's part of the bucket decides
	FailAllow                    // all are admitted, and debited later
	FailDeny                     // all are refused
)

// UnmarshalText reads local, allow or deny.
func (m *FailureMode) UnmarshalText(text []byte) error {
	for mode, name := range [...]string{"local", "allow", "deny"} {
		if name == string(text) {
			*m = FailureMode(mode)
			return nil
		}
	}
	return fmt.Errorf("%q is not local, allow or deny", text)
}

func (m FailureMode) String() string { return [...]string{"local", "allow", "deny"}[m] }

// Options of a Limiter. The zero value is a working single node.
type Options struct {
	// Redis is nil for a single node. Single servers, Sentinel and Cluster will
	// do. A client of its own is best, with ContextTimeoutEnabled and
	// MaxRetries -1: a retried script charges twice. The limiter does not close it.
	Redis redis.UniversalClient

	FailureMode FailureMode
	NodeID      string // of this node among the fleet's; empty = made up

	Budget     time.Duration    // the longest a TakeAt waits for a Redis that is not slow; 0 = DefaultBudget
	MaxBuckets int              // bound of the in-process store; 0 = about a million
	Clock      func() time.Time // of this node; nil = time.Now (Redis goes by its own)
	Boottime   *boottime.Clock  // measures time where Clock is nil; nil = one of the limiter's own
}

// Limiter decides who may pass. All methods may be called from any goroutine.
type Limiter struct {
	link   roundTrip // to Redis
	mode   FailureMode
	clock  func() time.Time // nil = Go's own
	boot   *boottime.Clock  // then
	start  time.Time
	tally  tally
	trips  sync.Pool // *trip
	outage outage
	closed atomic.Bool

	handles sync.Map // key -> weak.Pointer[Bucket], of those in use

	local  *localStore // no Redis: the buckets; else nil
	redis  *redisStats // Redis: what goes to it; else nil
	fleet  *fleet      // Redis: who else there is; else nil
	life   int64       // of a lease's epoch, microseconds
	own    Source      // of decisions that need no trip
	router *dispatcher // where a bucket goes whose home is not known: the only one, but in a Cluster

	cluster *cluster // nil unless it is one
}

// New makes a limiter. It makes no call to Redis: a node starts while Redis is down.
func New(o Options) *Limiter {
	l := newLimiter(o)
	switch client := o.Redis.(type) {
	case nil:
		l.openMemory(o.MaxBuckets)
		return l
	case *redis.ClusterClient:
		l.redis = new(redisStats)
		l.openCluster(client)
	default:
		l.redis = new(redisStats)
		l.openStore(newRedisStore(client, l.redis))
	}
	if o.NodeID == "" {
		o.NodeID = rand.Text()
	}
	l.openFleet(o.Redis, o.NodeID)
	return l
}

func newLimiter(o Options) *Limiter {
	l := &Limiter{mode: o.FailureMode, clock: o.Clock, boot: o.Boottime, life: leaseLife, own: SourceLease}
	if o.Budget <= 0 {
		o.Budget = DefaultBudget
	}
	l.link.budget = int64(o.Budget / time.Microsecond)
	if l.clock != nil {
		l.start = l.clock()
	} else if l.boot == nil {
		l.boot = boottime.New()
	}
	l.trips.New = func() any { return newTrip() }
	return l
}

// openMemory keeps the buckets in this process. Leases on them need not age:
// whoever forgets the one forgets the other.
func (l *Limiter) openMemory(maxBuckets int) {
	if maxBuckets <= 0 {
		maxBuckets = defaultMaxBuckets
	}
	l.local, l.life, l.own = newLocalStore(l.now, maxBuckets), 0, SourceMemory
	l.router = l.newDispatcher(nil)
	go l.router.run()
}

func (l *Limiter) openStore(s store) {
	l.router = l.newDispatcher(s)
	go l.router.run()
}

// now is this node's time in microseconds. It does not follow a step of the wall
// clock, and counts what the machine sleeps: leases end meanwhile.
func (l *Limiter) now() int64 {
	if l.clock == nil {
		return l.since(time.Now())
	}
	return l.since(l.clock())
}

// since is now, of a reading of the same clock.
func (l *Limiter) since(t time.Time) int64 {
	if l.boot != nil {
		return int64(l.boot.At(t) / time.Microsecond)
	}
	return int64(t.Sub(l.start) / time.Microsecond)
}

// nodes is how many there are in the fleet, as far as is known.
func (l *Limiter) nodes() int64 {
	if l.fleet == nil {
		return 1
	}
	return l.fleet.nodes()
}

// want has the bucket visited soon, unless it is on its way.
func (l *Limiter) want(b *Bucket) {
	if l.local != nil {
		l.visit(b, l.now(), 0)
		return
	}
	d := l.homeOf(b)
	if d.away.Load() {
		d.watch(b)
		return
	}
	if b.lease.wanted.CompareAndSwap(false, true) {
		d.want(b)
	}
}

// wantBoth is want for the two buckets of a request. They have one home, and
// where neither is on its way they travel in one pipeline.
func (l *Limiter) wantBoth(key, workspace *Bucket) {
	d := l.homeOf(key)
	if d == l.router {
		d = l.homeOf(workspace)
	}
	if d.away.Load() || !key.sharesShardWith(workspace) {
		l.want(key)
		l.want(workspace)
		return
	}
	both := make([]*Bucket, 0, 2)
	for _, b := range [...]*Bucket{key, workspace} {
		if b.lease.wanted.CompareAndSwap(false, true) {
			if both = append(both, b); d != l.router {
				b.home.Store(d)
			}
		}
	}
	d.want(both...)
}

// homeOf is the dispatcher that has, or will find, the bucket.
func (l *Limiter) homeOf(b *Bucket) *dispatcher {
	if d := b.home.Load(); d != nil && !d.retired.Load() {
		return d
	}
	return l.router
}

// visit is a flight that lands at once, for the in-process store. mine is 1
// where the caller wants a token, and its verdict then spent or denied.
func (l *Limiter) visit(b *Bucket, now, mine int64) verdict {
	b.visiting.Lock()
	defer b.visiting.Unlock()
	for {
		if mine > 0 {
			if v := b.lease.retry(b.Policy(), now); v != empty {
				return v
			}
		}
		c, p := call{key: b.key}, b.policy.Load()
		if !b.lease.depart(&c, *p, now, 1, mine, false) {
			return denied
		}
		l.tally.departed(&c)
		b.cell.Store(l.local.call(b.cell.Load(), p, &c))
		b.lease.land(&c, c.now, c.now, min(mine, c.granted))
		l.tally.landed(&c)
		if c.leased > 0 {
			l.router.watch(b)
		}
		switch {
		case mine == 0 || c.granted == mine:
			return spent
		case c.need > 0:
			return denied
		}
		now = c.now // the books of an old policy are closed: now the new one
	}
}

// Return gives the tokens of a TakeAt back, for a request that turned out to cost
// nothing. It never waits for Redis and never fills a bucket above its burst.
func (l *Limiter) Return(key, workspace *Bucket) {
	if workspace == key {
		workspace = nil
	}
	now := l.now()
	for _, b := range [...]*Bucket{key, workspace} {
		if b != nil && b.policy.Load().r > 0 {
			l.tally.returned.Add(1)
			l.refund(b, now, false)
		}
	}
}

// refund takes a token back into the lease, or sends it to the bucket: at once
// where the bucket is small, else with what goes there next.
func (l *Limiter) refund(b *Bucket, now int64, alone bool) {
	travels, urgent := b.lease.refund(now, alone)
	switch {
	case !travels:
	case urgent || l.local != nil:
		l.want(b)
	default:
		l.homeOf(b).watch(b)
	}
}

// Close waits for the visits under way, gives back what this node holds, sends
// what it owes, and ends the limiter's goroutines. Where ctx ends first they
// end by their own timeouts. A TakeAt after Close is decided by this node alone.
func (l *Limiter) Close(ctx context.Context) error {
	again := l.closed.Swap(true)
	ended := make(chan struct{})
	go func() { // ends with the last flight, at most a few flightTimeouts later
		defer close(ended)
		if l.fleet != nil {
			l.fleet.leave(again)
		}
		if l.cluster != nil {
			l.cluster.leave(again)
		}
		if !again {
			l.router.end()
		}
		<-l.router.ended
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
