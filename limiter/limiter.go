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
//	edge/pipeline.go limiter/limiter.go limiter/bucket.go limiter/lease/lease.go
//	limiter/lease/policy.go
//
// # A decision that asks Redis: at most 3 files
//
// No token is held, or the burst is too small for leases. After those of a limit decision:
//
//	limiter/shard.go limiter/lease/call.go limiter/redis.go
package limiter

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"math/rand/v2"
	"slices"
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

// Quota returns the handle on a workspace's quota for the period of that name (2026-11 or
// 2026-11-22), and sets how many requests it has. What was used of it stays used.
func (l *Limiter) Quota(workspace, period string, tokens int64, ends time.Time) *Counter {
	l.quotas.mu.Lock()
	key := "{" + workspace + "}:q:" + period
	q := l.quotas.all[key]
	if q == nil {
		q = &Counter{l: l, workspace: workspace, share: share{key: key, shard: l.shardOf(key)}, until: ends.UnixMicro(), began: never, answered: never}
		if l.store == nil { // nothing is taken elsewhere
			q.answered = 0
		}
		l.quotas.all[key] = q
		time.AfterFunc(time.Until(ends)+quotaKept, q.forget)
	}
	l.quotas.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tokens != tokens { // a block of the old number goes back
		q.taken = min(q.taken, q.spent)
		q.tokens, q.deny = tokens, 0
		l.active.add(q)
	}
	return q
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

// account is a bucket or a quota of the fleet, of which this node spends a part. Its mu is held.
type account interface {
	base() *share

	take(now int64) lease.Outcome                          // takes a token by what is known here
	retry(now int64) lease.Outcome                         // takes it for a request that take has counted already
	takeAlone(now, ahead int64) (lease.Outcome, Status)    // takes a token without Redis
	denies(now int64) bool                                 // reports whether take would refuse
	refund(now int64, alone bool)                          // takes a token back
	status(now, ahead int64, outcome lease.Outcome) Status // what a response says of it, after take
	patience() int64                                       // for how long a request waits for Redis

	begin(now int64, giveBack bool) call // the next call, nil = it needs none; with giveBack, it returns what is held
	sweep(now int64) (due bool)          // reports whether a call should be sent although no request waits
	isActive() bool                      // reports whether it has to be swept
	holds(now int64) int64               // how many tokens may be spent without a call
	owes() bool                          // reports whether tokens were spent here that it may not have debited yet
}

// part is the part of a decision that one account makes. If there is no such account, it is
// Granted.
type part struct {
	account
	outcome lease.Outcome
	status  Status
	alone   bool       // this node decides without Redis
	replies chan reply // the request waits here for Redis' answer; nil = it does not wait
	until   int64      // it waits no longer
}

// request is one request to decide.
type request struct {
	l     *Limiter
	parts [3]part // of the accounts in the order of Which
	ahead int64   // the wall clock is so many microseconds ahead of this node's time
	free  bool    // it takes no token, and nothing refuses it
}

// decide takes a token from each account, or none from any.
func (r *request) decide(now int64) Decision {
	d := Decision{Allowed: true, Source: SourceLease}
	remote, refused := false, false
	for i := range r.parts {
		p := &r.parts[i]
		if p.outcome = lease.Granted; p.account != nil {
			r.take(p, now, refused)
			remote = remote || p.outcome == lease.NeedRemote
			refused = refused || p.outcome == lease.Denied
		}
	}
	if remote && !refused {
		r.decideRemote()
		now = r.l.now()
		refused = slices.ContainsFunc(r.parts[:], func(p part) bool { return p.outcome == lease.Denied })
	}
	for i := range r.parts {
		p := &r.parts[i]
		if p.account == nil {
			continue
		}
		if refused && p.outcome == lease.Granted { // the refusal of another account makes the token useless
			p.base().mu.Lock()
			p.refund(now, p.alone)
			p.base().mu.Unlock()
			p.status.Remaining++
		}
		switch {
		case p.alone:
			d.Source = r.l.alone
		case p.replies != nil && d.Source == SourceLease:
			d.Source = SourceRedis
		}
		d.add(Which(i+1), p.status)
	}
	return d
}

// take lets one account decide at once: this node has a token of it, or knows that there is none, or
// Redis is down. If another account has refused the request, it takes no token: the outcome is
// NeedRemote or Denied.
func (r *request) take(p *part, now int64, refused bool) {
	h := p.base()
	h.mu.Lock()
	defer h.mu.Unlock()
	p.outcome = lease.NeedRemote
	switch {
	case r.free:
		p.outcome = lease.Granted
	case !refused:
		p.outcome = p.account.take(now)
	case p.denies(now):
		p.outcome = lease.Denied
	}
	p.alone = (r.free || p.outcome == lease.NeedRemote) && h.shard.refuses()
	if p.alone && !r.free && !refused {
		p.outcome, p.status = p.takeAlone(now, r.ahead)
	} else {
		p.status = p.account.status(now, r.ahead, p.outcome)
	}
}

// decideRemote decides the parts that need Redis, while no account refuses the request.
func (r *request) decideRemote() {
	calls := make([]account, 0, len(r.parts)) // to one shard: see KeyBucket
	for i := range r.parts {
		if p := &r.parts[i]; p.outcome == lease.NeedRemote && r.startWaiting(p) {
			calls = append(calls, p.account)
		}
	}
	if len(calls) > 0 {
		calls[0].base().shard.enqueue(calls...)
	}
	for i := range slices.Backward(r.parts[:]) { // a quota may be waited for longer than a bucket
		if p := &r.parts[i]; p.outcome == lease.NeedRemote {
			r.await(p)
		}
	}
}

// startWaiting tries once more to decide here. If Redis is still needed, the request waits for the
// account, unless the shard is unreachable. startWaiting reports whether it has marked the account
// for a call.
func (r *request) startWaiting(p *part) (marked bool) {
	h := p.base()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := r.l.now()
	if p.outcome = p.account.retry(now); p.outcome != lease.NeedRemote {
		p.status = p.account.status(now, r.ahead, p.outcome)
		return false
	}
	if h.shard.unreachable(p.patience()) {
		return false
	}
	p.until, p.replies = now+p.patience(), make(chan reply, 1)
	h.waiters = append(h.waiters, p.replies)
	if h.pending {
		return false
	}
	h.markPending()
	return true
}

// await decides a part by Redis' answer, or without Redis if none comes in time.
func (r *request) await(p *part) {
	h, got := p.base(), reply{}
	if p.replies != nil {
		select {
		case got = <-p.replies:
		case <-time.After(time.Duration(p.until-r.l.now()) * time.Microsecond):
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.waiters, p.replies); i >= 0 {
		h.waiters = slices.Delete(h.waiters, i, i+1)
	}
	select {
	case got = <-p.replies: // it came at that moment
	default:
	}
	if p.outcome = got.outcome; p.outcome == lease.NeedRemote {
		p.alone = true
		p.outcome, p.status = p.takeAlone(r.l.now(), r.ahead)
	} else {
		p.status = p.account.status(got.at, r.ahead, p.outcome)
	}
}

// Close waits for the calls in flight, gives back what this node holds, sends its debts, leaves
// the fleet, and ends the limiter's goroutines. No more calls, sweeps and shards begin. If ctx
// ends first, it gives no more back, and waits only for calls in flight, which callTimeout
// bounds. A Take after Close is decided by the fallback.
func (l *Limiter) Close(ctx context.Context) error {
	l.mu.Lock()
	before := l.closed.Swap(true)
	l.mu.Unlock()
	if before {
		return nil
	}
	for _, s := range l.allShards() {
		l.running.Go(func() { s.close(ctx) })
	}
	l.running.Wait()
	return ctx.Err()
}

// shardOf returns the shard that has a key. After close there are no new ones.
func (l *Limiter) shardOf(key string) *shard {
	index := uint8(0)
	if l.store != nil {
		index = l.store.shardOf(key)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.shards[index] != nil:
	case l.closed.Load():
		index = 0
	default:
		l.shards[index] = newShard(l, int(index))
	}
	return l.shards[index]
}

func (l *Limiter) allShards() []*shard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.shards[:]), func(s *shard) bool { return s == nil })
}

// Stats are counts since the start of a limiter, and its present state.
type Stats struct {
	Allowed, Refused [sources]uint64 // requests, by Source

	RedisTrips    uint64 // round trips to Redis
	RedisCalls    uint64 // script calls in them
	RedisErrors   uint64 // failed trips that did not time out
	RedisTimeouts uint64 // trips that took longer than a request waits, or timed out

	BreakerOpen bool          // no request waits for Redis
	Degraded    time.Duration // how long it has been open, in sum
	Failure     error         // why limits are not kept in Redis; nil = they are

	LeasedHeld   int64  // tokens that this node holds
	TokensLeased uint64 // since the start
	Nodes        int64  // in the fleet, as last counted; 0 = not known, or no Redis
	Owing        int    // buckets and quotas with tokens spent without Redis that it has not debited yet

	Quotas []QuotaUse // those that are used the most
}

// Stats returns a snapshot.
func (l *Limiter) Stats() Stats {
	c := &l.counts
	s := Stats{RedisTrips: c.trips.Load(), RedisCalls: c.calls.Load(), RedisErrors: c.errors.Load(), RedisTimeouts: c.timeouts.Load(),
		TokensLeased: c.leased.Load()}
	for source := range sources {
		s.Refused[source], s.Allowed[source] = c.decisions[0][source].Load(), c.decisions[1][source].Load()
	}
	l.quotas.stats(&s)
	if l.store == nil {
		return s
	}
	now := l.now()
	l.active.each(func(a account) {
		s.LeasedHeld += max(0, a.holds(now))
		if a.owes() {
			s.Owing++
		}
	})
	for _, k := range l.allShards() {
		k.stats(&s, now)
	}
	return s
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
