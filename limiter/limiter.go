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
// # A limit decision: at most 4 files
//
// Most decisions spend a token that this node holds.
//
//	edge/pipeline.go limiter/limiter.go limiter/shard.go limiter/lease/lease.go
//
// # A decision that asks Redis: at most 2 files
//
// No token is held, or the burst is too small for leases. After those of a limit decision:
//
//	limiter/lease/call.go limiter/redis.go
package limiter

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"listedge/internal/boottime"
	"listedge/limiter/lease"
)

// Limiter admits or refuses requests. All methods may be called from any goroutine.
type Limiter struct {
	store   *store // nil = none: each bucket is in this process, as a fallback of one part
	mode    FailureMode
	offline Source // of decisions without Redis
	budget  int64  // of lease.Link: microseconds
	id      string // of this node, in heartbeats
	run     int64  // names this process in the counts of quotas in Redis
	clock   *boottime.Clock
	counts  counts

	buckets buckets
	quotas  quotas
	active  activeLimits
	running sync.WaitGroup // heartbeats, and what ends them
	closed  atomic.Bool    // set with mu held

	mu     sync.Mutex        // guards shards; taken after a bucket's
	shards [maxShards]*shard // the first one always exists
}

// New makes a limiter. It makes no call to Redis: a node starts while Redis is down.
func New(o Options) *Limiter {
	l := &Limiter{
		mode:    cmp.Or(o.FailureMode, FailLocal),
		offline: SourceLocalFallback,
		budget:  cmp.Or(o.Budget, DefaultBudget).Microseconds(),
		id:      cmp.Or(o.NodeID, crand.Text()),
		run:     1 + rand.Int64N(1<<50),
		clock:   cmp.Or(o.Clock, boottime.New()),
		quotas:  quotas{all: make(map[string]*Counter)},
		buckets: buckets{all: make(map[string]weak.Pointer[Bucket])},
	}
	if o.Redis != nil {
		l.store = &store{client: o.Redis, prefix: o.Prefix}
	} else {
		l.mode, l.offline = FailLocal, SourceMemory
	}
	l.active = activeLimits{l: l, limits: make(map[*limit]struct{})}
	l.shardOf(membersKey(0))
	return l
}

// now is this node's time in microseconds. Steps of the wall clock do not change it. It
// goes on while the machine sleeps, so that leases end meanwhile.
func (l *Limiter) now() int64 { return l.clock.Now().Microseconds() }

// moment is one moment by two clocks, in microseconds.
type moment struct {
	at   int64 // this node's time: see Limiter.now
	wall int64 // since 1970
}

func (l *Limiter) moment(now time.Time) moment {
	return moment{l.clock.At(now).Microseconds(), now.UnixMicro()}
}

// Bucket returns the handle on a bucket (KeyBucket, WorkspaceBucket), with policy p from now on.
func (l *Limiter) Bucket(key string, p Policy) *Bucket {
	l.buckets.mu.Lock()
	b := l.buckets.all[key].Value()
	if b == nil {
		if len(l.buckets.all) >= l.buckets.sweepAt {
			maps.DeleteFunc(l.buckets.all, func(_ string, b weak.Pointer[Bucket]) bool { return b.Value() == nil })
			l.buckets.sweepAt = max(1024, 2*len(l.buckets.all))
		}
		b = &Bucket{limit: limit{key: key, shard: l.shardOf(key)}}
		b.law = b
		b.lease.Init(p, l.now())
		l.buckets.all[key] = weak.Make(b)
	}
	l.buckets.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lease.Policy != p {
		b.lease.SetPolicy(p)
	}
	b.blocked.Store(p.Blocked())
	return b
}

// Quota returns the handle on a workspace's quota for the period of that name (2026-11 or
// 2026-11-22), and sets how many requests it has. What was used of it stays used.
func (l *Limiter) Quota(workspace, period string, tokens int64, ends time.Time) *Counter {
	q := l.quotas.get(l, workspace, period, ends)
	q.setTokens(tokens)
	return q
}

// Take takes one token from each bucket and the quota, or none from any. What is nil is
// unlimited. Take waits for Redis no longer than DefaultBudget says. The caller read now at
// most a tenth of a second ago: reading the clock again costs more than the decision.
func (l *Limiter) Take(now time.Time, key, workspace *Bucket, quota *Counter) Decision {
	r, d := l.request(now, key, workspace, quota)
	if d.Source == SourceLease {
		r.take(&d)
	}
	l.counts.add(&d)
	return d
}

// Peek is Take without taking a token, for a response that costs none. Only a rate of 0
// refuses it, and is counted.
func (l *Limiter) Peek(now time.Time, key, workspace *Bucket, quota *Counter) Decision {
	r, d := l.request(now, key, workspace, quota)
	switch d.Source {
	case SourceLease:
		r.peek(&d)
	case SourceBlocked:
		l.counts.add(&d)
	}
	return d
}

// request is one request to decide.
type request struct {
	l        *Limiter
	now      moment
	verdicts [Workspace + 1]verdict // by Limit
}

// verdict is what one limit says about a request. If there is no such limit, it is Granted.
type verdict struct {
	*limit
	outcome lease.Outcome
	status  Status
	offline bool        // this node decides without Redis
	answers chan answer // the request waits here for Redis' answer; nil = it does not wait
	until   int64       // it waits no longer
}

// request returns a request, and its decision if that needs no token; else the Source is SourceLease.
func (l *Limiter) request(now time.Time, key, workspace *Bucket, quota *Counter) (r request, d Decision) {
	for of, b := range [...]*Bucket{Key: key, Workspace: workspace} {
		if b == nil {
			continue
		}
		if b.blocked.Load() {
			d.Source = SourceBlocked
			d.add(Limit(of), lease.Refused(blockedRetry.Microseconds()))
			return r, d
		}
		r.verdicts[of].limit = &b.limit
	}
	if quota != nil {
		r.verdicts[Quota].limit = &quota.limit
	} else if key == nil && workspace == nil {
		return r, Decision{Allowed: true, Source: SourceUnlimited}
	}
	r.l, r.now = l, l.moment(now)
	return r, Decision{Allowed: true, Source: SourceLease}
}

// peek decides a request that takes no token.
func (r *request) peek(d *Decision) {
	for i := range r.verdicts {
		h := r.verdicts[i].limit
		if h == nil {
			continue
		}
		h.mu.Lock()
		_, status := h.law.decide(r.now, look)
		if h.shard.refuses() {
			d.Source = r.l.offline
		}
		h.mu.Unlock()
		status.RetryIn = 0
		d.add(Limit(i), status)
	}
}

// take takes a token from each limit, or none from any.
func (r *request) take(d *Decision) {
	remote, refused := false, false
	for i := range r.verdicts {
		v := &r.verdicts[i]
		if v.limit == nil {
			v.outcome = lease.Granted
			continue
		}
		r.decideHere(v, refused)
		remote = remote || v.outcome == lease.NeedRemote
		refused = refused || v.outcome == lease.Denied
	}
	now := r.now.at
	if remote && !refused {
		r.askRedis()
		now = r.l.now()
		refused = slices.ContainsFunc(r.verdicts[:], func(v verdict) bool { return v.outcome == lease.Denied })
	}
	for i := range r.verdicts {
		v := &r.verdicts[i]
		if v.limit == nil {
			continue
		}
		if refused && v.outcome == lease.Granted { // the refusal of another limit makes the token useless
			v.mu.Lock()
			v.law.refund(now, v.offline)
			v.mu.Unlock()
			v.status.Remaining++
		}
		switch {
		case v.offline:
			d.Source = r.l.offline
		case v.answers != nil && d.Source == SourceLease:
			d.Source = SourceRedis
		}
		d.add(Limit(i), v.status)
	}
}

// decideHere lets one limit decide at once: this node has a token of it, or knows that there is none, or
// Redis is down. If another limit has refused the request, it takes no token: the outcome is
// NeedRemote or Denied.
func (r *request) decideHere(v *verdict, refused bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	how := take
	if refused {
		how = look
	}
	v.outcome, v.status = v.law.decide(r.now, how)
	v.offline = v.outcome == lease.NeedRemote && v.shard.refuses()
	if v.offline && !refused {
		v.outcome, v.status = v.law.decide(r.now, takeOffline)
	}
}

// askRedis decides for the limits that need Redis, while no limit refuses the request.
func (r *request) askRedis() {
	asking := make([]*limit, 0, len(r.verdicts)) // they are of one shard: see KeyBucket
	for i := range r.verdicts {
		v := &r.verdicts[i]
		if v.outcome == lease.NeedRemote && r.startWaiting(v) {
			asking = append(asking, v.limit)
		}
	}
	if len(asking) > 0 {
		asking[0].shard.enqueue(asking...)
	}
	for i := range slices.Backward(r.verdicts[:]) { // a quota may be waited for longer than a bucket
		v := &r.verdicts[i]
		if v.outcome == lease.NeedRemote {
			r.await(v)
		}
	}
}

// startWaiting tries once more to decide here. If Redis is still needed, the request waits for the
// limit, unless the shard is unreachable. startWaiting reports whether it has marked the limit
// for a call.
func (r *request) startWaiting(v *verdict) (marked bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := r.l.moment(time.Now())
	v.outcome, v.status = v.law.decide(now, retry)
	if v.outcome != lease.NeedRemote || v.shard.unreachable(v.patience()) {
		return false
	}
	v.until, v.answers = now.at+v.patience(), make(chan answer, 1)
	v.waiters = append(v.waiters, v.answers)
	if v.pending {
		return false
	}
	v.markPending()
	return true
}

// await decides for a limit by Redis' answer, or without Redis if none comes in time.
func (r *request) await(v *verdict) {
	var got answer
	if v.answers != nil {
		select {
		case got = <-v.answers:
		case <-time.After(time.Duration(v.until-r.l.now()) * time.Microsecond):
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := slices.Index(v.waiters, v.answers); i >= 0 {
		v.waiters = slices.Delete(v.waiters, i, i+1)
	}
	select {
	case got = <-v.answers: // it came at that moment
	default:
	}
	v.outcome, v.status = got.outcome, got.status
	if v.outcome == lease.NeedRemote {
		v.offline = true
		v.outcome, v.status = v.law.decide(r.l.moment(time.Now()), takeOffline)
	}
}

// Bucket is a handle on one bucket: its key, its policy and this node's part of
// it. Keep it with what is limited, and use it from any number of goroutines.
type Bucket struct {
	limit // its mu guards all below
	lease lease.Lease
}

// KeyBucket names the bucket of an API key. The braces are a Redis Cluster hash
// tag: all buckets of a request are on one shard.
func KeyBucket(workspace, key string) string { return "{" + workspace + "}:b:" + key }

// WorkspaceBucket names the bucket that all keys of a workspace share.
func WorkspaceBucket(workspace string) string { return "{" + workspace + "}:b" }

// Policy returns the policy that is in force at this node.
func (b *Bucket) Policy() Policy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lease.Policy
}

func (b *Bucket) decide(now moment, how manner) (outcome lease.Outcome, _ Status) {
	switch how {
	case take:
		outcome = b.lease.Take(now.at)
	case retry:
		outcome = b.lease.Retry(now.at)
	case takeOffline:
		return b.takeOffline(now.at)
	case look:
		if b.lease.Denies(now.at) {
			outcome = lease.Denied
		}
	}
	switch {
	case outcome == lease.Denied:
		return outcome, lease.Refused(b.lease.RetryIn(now.at))
	case outcome == lease.Granted && b.lease.Due(now.at): // before a request has to wait
		b.requestCall()
	}
	return outcome, b.lease.Status(now.at, b.shard.fleet(), b.shard.refuses())
}

// takeOffline decides by the failure mode.
func (b *Bucket) takeOffline(now int64) (lease.Outcome, Status) {
	l, f := b.shard.l, b.shard.fleet()
	ok, wait := false, heartbeatInterval.Microseconds()
	if l.mode != FailDeny {
		ok, wait = b.lease.TakeFallback(now, f, l.mode == FailAllow)
		l.active.add(&b.limit, now)
	}
	if !ok {
		return lease.Denied, lease.Refused(wait)
	}
	return lease.Granted, b.lease.Status(now, f, true)
}

// refund takes a token back into the lease, or else sends it to the bucket: at once if the
// bucket is not leased from, otherwise with the next call.
func (b *Bucket) refund(now int64, offline bool) {
	if !b.lease.Refund(now, offline) {
		return
	}
	b.shard.l.active.add(&b.limit, now)
	if !b.lease.Policy.Leased() {
		b.requestCall()
	}
}

func (b *Bucket) inspect(now int64) lease.Holdings { return b.lease.Inspect(now, b.shard.fleet()) }

func (b *Bucket) begin(now int64, giveBack bool) *call {
	c, f := new(lease.Call), b.shard.fleet()
	if !b.lease.Begin(c, int64(len(b.waiters)), now, f, giveBack) {
		return nil
	}
	c.Until = now + f.Ahead + callTimeout.Microseconds()
	return &call{script: tokenBucketScript, limit: &b.limit, key: b.key, arguments: []any{pack(c.Arguments()...)}, apply: func(n []int64, answeredAt int64) {
		if n == nil {
			b.lease.Fail(c)
			return
		}
		c.Reply = lease.ReplyOf(n)
		b.lease.Complete(c, now, answeredAt, b.shard.fleet())
		b.shard.l.counts.leased.Add(uint64(c.Leased))
	}}
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
	l.active.stats(&s, now)
	for _, k := range l.allShards() {
		k.stats(&s, now)
	}
	return s
}

// Decision is the answer to one Take. It has all that a response needs.
type Decision struct {
	Allowed    bool
	Refused    Limit         // who refused; of several, the one with the longest wait
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
func (d *Decision) add(of Limit, s Status) {
	*[...]*Status{Key: &d.Key, Workspace: &d.Workspace, Quota: &d.Quota}[of] = s
	if s.RetryIn > d.RetryAfter {
		d.Allowed, d.RetryAfter, d.Refused = false, s.RetryIn, of
	}
}

// Limit names one of a request's limits. The quota is the first that decides: what it refuses is no
// demand for the buckets.
type Limit uint8

const (
	NoLimit Limit = iota
	Quota         // of the workspace
	Key
	Workspace
)

func (l Limit) String() string { return [...]string{"none", "quota", "key", "workspace"}[l] }

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
