// Package limiter admits requests by token bucket: over all nodes of a fleet, and
// over any span of t seconds, at most burst + rate*t of them, counted when they
// are admitted. A request takes one token from its key's bucket, one from its
// workspace's and one from its workspace's quota (quota.go), or none from any.
//
//	Take ─┬─ a token is held ──────────────────> admitted
//	      ├─ there is known to be none yet ────> refused
//	      └─ wait ── shard ════════════════════> Redis (script), many buckets a pipeline
//	                    └─ late, or down: fallback to this node's part of the
//	                       bucket, rate/N and burst/N ──> a debt, sent later
//
// A node without Redis is a fleet of one whose Redis is always down: its part is the
// whole bucket.
//
// Leased tokens still count in the bucket (level + held <= burst). That keeps the
// promise. While nodes send no heartbeats, the others withhold their part of each rate:
// they may be spending it without Redis. docs/LIMITS.md says what the promise does not cover.
//
// # A limit decision: at most 5 files
//
// Most decisions spend a token that this node holds.
//
//	edge/page.go limiter/limiter.go limiter/leased.go limiter/bucket.go
//	limiter/lease/lease.go
//
// # A decision that asks Redis: at most 4 files
//
// No token is held, or the burst is too small for leases. After those of a limit decision:
//
//	limiter/shard.go limiter/lease/call.go limiter/lease/policy.go limiter/redis.go
package limiter

import (
	"cmp"
	crand "crypto/rand"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"listedge/internal/boottime"
	"listedge/limiter/lease"
)

// Policy is the rate and burst of a bucket.
type Policy = lease.Policy

// NewPolicy makes a policy of a rate in tokens a second and a burst in tokens.
func NewPolicy(rate float64, burst int64) (Policy, error) { return lease.NewPolicy(rate, burst) }

// IsWholeRate reports whether a rate is a whole number of micro-tokens a second.
// NewPolicy rounds other rates down.
func IsWholeRate(rate float64) bool { return lease.IsWhole(rate) }

// Options are the settings of a Limiter. The zero value is a working single node.
type Options struct {
	// Redis is nil for a single node. The client may lead to a single server, Sentinel
	// or Cluster. It should be used by the limiter only, with ContextTimeoutEnabled. The
	// limiter does not close it.
	Redis  redis.UniversalClient
	Prefix string // begins all keys in Redis; limiters of different prefixes share nothing

	FailureMode FailureMode // empty = FailLocal
	NodeID      string      // unique in the fleet, and the same after a restart; empty = random

	Budget time.Duration   // the longest a Take waits for a Redis that is not slow; 0 = DefaultBudget
	Clock  *boottime.Clock // of this node; nil = a new one (the script uses Redis' own clock)
}

// FailureMode is how requests are decided while Redis is unreachable and no leased
// token is left.
type FailureMode string

const (
	FailLocal FailureMode = "local" // this node's part of the bucket decides
	FailAllow FailureMode = "allow" // all are admitted; Redis debits them later
	FailDeny  FailureMode = "deny"  // all are refused
)

// DefaultBudget is how long a request waits for Redis: several round trips within a
// data centre. If two round trips take longer, a request waits for two, but never more
// than 125 ms.
const DefaultBudget = 10 * time.Millisecond

// Limiter admits or refuses requests. All methods may be called from any goroutine.
type Limiter struct {
	store  store // nil = none: each bucket is in this process, as a fallback of one part
	mode   FailureMode
	alone  Source // of decisions without Redis
	budget int64  // of lease.Link: microseconds
	id     string // of this node, in heartbeats
	run    int64  // names this process in the counts of quotas in Redis
	clock  *boottime.Clock
	counts counts

	buckets registry
	quotas  quotas
	active  activeAccounts
	running sync.WaitGroup // heartbeats, and what ends them
	closed  atomic.Bool    // set with mu held

	mu     sync.Mutex        // guards shards; taken after a bucket's
	shards [maxShards]*shard // the first one always exists
}

// New makes a limiter. It makes no call to Redis: a node starts while Redis is down.
func New(o Options) *Limiter {
	if o.Redis == nil {
		return newLimiter(o, nil)
	}
	return newLimiter(o, &redisStore{client: o.Redis, prefix: o.Prefix})
}

// newLimiter makes a limiter whose buckets are in the store. nil = there is none.
func newLimiter(o Options, s store) *Limiter {
	l := &Limiter{store: s, mode: cmp.Or(o.FailureMode, FailLocal), alone: SourceLocalFallback, id: cmp.Or(o.NodeID, crand.Text()),
		budget: cmp.Or(o.Budget, DefaultBudget).Microseconds(), run: 1 + rand.Int64N(1<<50), clock: cmp.Or(o.Clock, boottime.New())}
	if s == nil {
		l.mode, l.alone = FailLocal, SourceMemory
	}
	l.quotas = quotas{all: make(map[string]*Counter)}
	l.buckets = registry{buckets: make(map[string]weak.Pointer[Bucket]), sweepAt: sweepFrom}
	l.active = activeAccounts{l: l, accounts: make(map[account]struct{})}
	l.shardOf(membersKey(0))
	return l
}

// now is this node's time in microseconds. Steps of the wall clock do not change it. It
// goes on while the machine sleeps, so that leases end meanwhile.
func (l *Limiter) now() int64 { return l.clock.Now().Microseconds() }

// Bucket returns the handle on a bucket (KeyBucket, WorkspaceBucket), with policy p from now on.
func (l *Limiter) Bucket(key string, p Policy) *Bucket {
	b := l.buckets.get(key, func() *Bucket {
		b := &Bucket{share: share{key: key, shard: l.shardOf(key)}}
		b.lease.Init(p, l.now())
		b.blocked.Store(p.Blocked())
		return b
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lease.Policy != p {
		b.lease.SetPolicy(p)
		b.blocked.Store(p.Blocked())
	}
	return b
}

// Take takes one token from each bucket and the quota, or none from any. What is nil is
// unlimited. Take waits for Redis no longer than DefaultBudget says. The caller read now at
// most a tenth of a second ago: reading the clock again costs more than the decision.
func (l *Limiter) Take(now time.Time, key, workspace *Bucket, quota *Counter) Decision {
	d := l.decide(now, key, workspace, quota, !free)
	l.counts.add(&d)
	return d
}

// Peek is Take without taking a token, for a response that costs none. Only a rate of 0
// refuses it, and is counted.
func (l *Limiter) Peek(now time.Time, key, workspace *Bucket, quota *Counter) (d Decision) {
	if d = l.decide(now, key, workspace, quota, free); !d.Allowed {
		l.counts.add(&d)
	}
	return d
}

// free lets decide take no token.
const free = true

func (l *Limiter) decide(now time.Time, key, workspace *Bucket, quota *Counter, free bool) Decision {
	switch {
	case key != nil && key.blocked.Load():
		return blocked(Key)
	case workspace != nil && workspace.blocked.Load():
		return blocked(Workspace)
	case key == nil && workspace == nil && quota == nil:
		return Decision{Allowed: true, Source: SourceUnlimited}
	}
	at := l.clock.At(now).Microseconds()
	r := request{l: l, ahead: now.UnixMicro() - at, free: free}
	if quota != nil {
		r.parts[Quota-1].account = quota
	}
	if key != nil {
		r.parts[Key-1].account = key
	}
	if workspace != nil {
		r.parts[Workspace-1].account = workspace
	}
	return r.decide(at)
}

// blocked refuses a request because a bucket has rate 0.
func blocked(which Which) Decision {
	d := Decision{Source: SourceBlocked}
	d.add(which, lease.Refused(blockedRetry.Microseconds()))
	return d
}

// Decision is the answer to one Take. It has all that a response needs.
type Decision struct {
	Allowed    bool
	Refused    Which         // who refused; of several, the one with the longest wait
	Source     Source        // where it was decided
	RetryAfter time.Duration // when refused: the time until there may be a token, never 0
	Key        Status
	Workspace  Status // zero if there is none; so is Quota
	Quota      Status
}

// UsedUp reports whether a quota that is used up refused the request: there will be no
// token before the period ends. A node without Redis may refuse before that.
func (d *Decision) UsedUp() bool {
	return d.Refused == Quota && d.Quota.RetryIn == d.Quota.ResetIn
}

// Status is the state of one bucket after a decision.
type Status = lease.Status

// add adds the status of one bucket to the decision: a refusal if it has to be retried.
func (d *Decision) add(which Which, s Status) {
	*[...]*Status{Key: &d.Key, Workspace: &d.Workspace, Quota: &d.Quota}[which] = s
	if s.RetryIn > d.RetryAfter {
		d.Allowed, d.RetryAfter, d.Refused = false, s.RetryIn, which
	}
}

// Which names who limits a request. The quota is the first that decides: what it refuses is no
// demand for the buckets.
type Which uint8

const (
	Neither Which = iota
	Quota         // of the workspace
	Key
	Workspace
)

func (w Which) String() string { return [...]string{"neither", "quota", "key", "workspace"}[w] }

// Source tells where a decision was made.
type Source uint8

const (
	SourceUnlimited     Source = iota // there is no bucket
	SourceBlocked                     // rate 0
	SourceMemory                      // the bucket itself: no Redis is configured
	SourceRedis                       // Redis, which the request waited for
	SourceLease                       // leased tokens, or an earlier answer of Redis that there is none yet
	SourceLocalFallback               // this node's part of the bucket: Redis did not answer in time
	SourceQuota                       // in Stats: a quota that is used up refused, whoever decided
	sources
)

func (s Source) String() string {
	return [...]string{"unlimited", "blocked", "memory", "redis", "lease", "local_fallback", "quota"}[s]
}

// blockedRetry is the Retry-After of a client with rate 0. It is long enough that the
// client seldom asks, and short enough that it notices when the rate is raised.
const blockedRetry = time.Hour

type counts struct {
	decisions                              [2][sources]atomic.Uint64 // refused, allowed
	trips, calls, errors, timeouts, leased atomic.Uint64
}

func (c *counts) add(d *Decision) {
	switch {
	case d.Allowed:
		c.decisions[1][d.Source].Add(1)
	case d.UsedUp():
		c.decisions[0][SourceQuota].Add(1)
	default:
		c.decisions[0][d.Source].Add(1)
	}
}
