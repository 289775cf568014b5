package limiter

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"listedge/limiter/lease"
)

// Counter is a handle on the quota of a workspace for one period: a count of requests, which
// the nodes share in Redis. A node takes blocks of it and spends them without a call. Blocks
// do not age. One that a node does not use goes back.
//
// A call says how much this node has taken since its start, not how much more. So a call
// that is lost, late or repeated counts once, and only a node that is killed loses something:
// its block. Requests that are admitted without Redis are counted when it is back.
type Counter struct {
	l         *Limiter
	workspace string
	key       string
	until     int64 // the end of the period, in microseconds since 1970

	mu     sync.Mutex // guards all below; no other lock is taken before it
	tokens int64      // requests in the period
	spent  int64      // of them, those admitted here
	taken  int64      // here; what is above spent may be spent, what is below is a debt
	known  int64      // what Redis counts as taken here; -1 = not known, because a call failed
	total  int64      // taken by all nodes, as of the last answer
	others float64    // taken by other nodes in a microsecond, lately

	number   int64         // of the last call
	flight   chan struct{} // closed when the call in flight has ended; nil = there is none
	waiting  int64         // requests that wait for it
	sweeping bool          // a timer will call sweep
	low      int64         // a balance below it starts a call
	before   int64         // spent when the last call began

	// Microseconds of this node's time.
	began, failed, answered, used, deny int64
}

// count is one call to a quota's count, with the answer: see quota.lua.
type count struct {
	key                                                         string
	tokens, run, number, floor, need, want, nodes, last, lifeMS int64
	taken, total                                                int64
}

const (
	never = math.MinInt64 / 2

	leastBlock    = 8          // tokens that a node takes at least, while many are left
	blockFor      = 5          // seconds that a block lasts
	renewAfter    = 5_000_000  // microseconds after which a request renews what is known of the others
	givenBack     = 20_000_000 // microseconds without a request after which a block goes back
	failedFor     = 100_000    // microseconds for which requests do not wait after a call failed
	quotaPause    = 1_000_000  // microseconds until the next call to a quota that is used up: blocks may have gone back
	quotaSweep    = time.Second
	fullestQuotas = 5             // how many quotas Stats shows
	shownFor      = 3_600_000_000 // microseconds after its last request for which it shows one: later one may be out of force

	// quotaKept is for how long a count is kept after its period. To a node whose clock is
	// late the period is not over, and an absent count would be 0.
	quotaKept = time.Hour
)

// quotas has the quotas that were used on this node, until their periods are over.
type quotas struct {
	mu  sync.Mutex
	all map[string]*Counter
}

// Quota returns the handle on a workspace's quota for the period of that name (2026-11 or
// 2026-11-22), and sets how many requests it has. What was used of it stays used.
func (l *Limiter) Quota(workspace, period string, tokens int64, ends time.Time) *Counter {
	l.quotas.mu.Lock()
	key := "{" + workspace + "}:q:" + period
	q := l.quotas.all[key]
	if q == nil {
		q = &Counter{l: l, workspace: workspace, key: key, until: ends.UnixMicro(), began: never, failed: never, answered: never}
		if q.l.store == nil { // nothing is taken elsewhere
			q.answered = 0
		}
		l.quotas.all[key] = q
		time.AfterFunc(time.Until(ends)+quotaKept, q.forget)
	}
	l.quotas.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tokens != tokens { // a block of the old number goes back
		q.taken = min(q.taken, q.spent) // mutation: a changed block stays
		q.tokens, q.deny = tokens, 0
		q.sweepLater()
	}
	return q
}

// forget forgets the quota if its period is over. If the clock was set back since the timer
// began, the period is not over, and forget is called again.
func (q *Counter) forget() {
	q.l.quotas.mu.Lock()
	defer q.l.quotas.mu.Unlock()
	if left := time.Until(time.UnixMicro(q.until).Add(quotaKept)); left > 0 { // mutation: a quota is forgotten
		time.AfterFunc(left, q.forget)
		return
	}
	delete(q.l.quotas.all, q.key)
}

// take takes one token. It waits for Redis no longer than a bucket does.
func (q *Counter) take(now int64) (ok bool, by Source) {
	q.mu.Lock()
	defer q.mu.Unlock()
	by, q.used = SourceLease, now
	for deadline := int64(0); q.spent >= q.taken && now >= q.deny; now = q.l.now() {
		wait := q.patience(now)
		if deadline = cmp.Or(deadline, now+wait); wait == 0 || now >= deadline {
			return q.takeAlone(now), q.l.alone
		}
		by = SourceRedis
		q.waiting++
		q.call(now, true)
		q.wait(time.Duration(deadline-now) * time.Microsecond)
		q.waiting--
	}
	if q.spent >= q.taken {
		return false, by
	}
	q.spent++
	if (q.taken-q.spent < q.low || now-q.answered > renewAfter) && now >= q.deny {
		q.call(now, true)
	}
	return true, by
}

// wait waits for the end of the call in flight. q.mu is held, but not meanwhile.
func (q *Counter) wait(most time.Duration) {
	flight := q.flight
	q.mu.Unlock()
	defer q.mu.Lock()
	select {
	case <-flight:
	case <-time.After(most):
	}
}

// patience is for how long a request waits for the next answer. A node that does not know
// what is left waits longer, because it refuses then. q.mu is held.
func (q *Counter) patience(now int64) int64 {
	s := q.l.shardOf(q.key)
	wait := s.link.Wait()
	switch {
	case q.answered == never && !s.refuses():
		return lease.MaxWait
	case s.unreachable() || now-q.failed < failedFor || q.flight != nil && now-q.began >= wait:
		return 0
	}
	return wait
}

// takeAlone decides without Redis: by this node's part of what is left. q.mu is held.
func (q *Counter) takeAlone(now int64) bool {
	s, ok := q.l.shardOf(q.key), false
	switch q.l.mode {
	case FailAllow:
		ok = true
	case FailLocal:
		// mutation: a quota that is lowered forgets its debt; an unknown quota is a full one
		ok = (q.answered != never || s.refuses()) && q.spent-q.taken < q.left(now, 1)/max(1, s.fleet().Nodes)
	}
	if ok {
		q.spent++
		q.sweepLater()
	}
	return ok
}

// left is how much of the quota no node has taken, if the others have taken since the last
// answer so many times what they usually do. q.mu is held.
func (q *Counter) left(now int64, times float64) int64 {
	return q.tokens - q.total - int64(times*q.others*float64(max(0, now-q.answered))) // mutation: the part of a quota is of a full one
}

// refund takes a token back, because a bucket refused the request.
func (q *Counter) refund() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spent--
}

// call starts a call if none is in flight and Redis is up. With more, it takes a block.
// q.mu is held.
func (q *Counter) call(now int64, more bool) {
	if q.flight == nil && !q.l.shardOf(q.key).refuses() {
		q.flight = make(chan struct{})
		go q.send(q.begin(now, more))
	}
}

// begin makes the next call. Without more, an idle block goes back. q.mu is held.
func (q *Counter) begin(now int64, more bool) *count {
	recent := float64(q.spent-q.before) / max(1, float64(now-q.began)/1e6)
	q.began, q.before = now, q.spent
	q.number++
	c := &count{key: q.key, tokens: q.tokens, run: q.l.run, number: q.number, nodes: max(1, q.l.shardOf(q.key).fleet().Nodes),
		lifeMS: max(1, (q.until-time.Now().UnixMicro())/1000+quotaKept.Milliseconds())}
	if more {
		c.need, c.want = q.waiting, max(0, max(leastBlock, int64(blockFor*recent))-max(0, q.taken-q.spent))
	} else if now-q.used >= givenBack {
		q.taken = min(q.taken, q.spent)
	}
	c.floor = max(q.spent, q.taken) // mutation: a lost count stays lost
	return c
}

func (q *Counter) send(c *count) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	sent := q.l.now()
	q.l.counts.trips.Add(1)
	q.l.counts.calls.Add(1)
	err := q.l.store.countQuota(ctx, c)
	q.l.shardOf(q.key).recordAnswer(err, sent)
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.flight)
	q.flight = nil
	if now := q.l.now(); err != nil {
		q.failed, q.known = now, -1
	} else {
		q.complete(c, now)
	}
	q.sweepLater()
}

// complete applies an answer. However late it is, the block may be spent. q.mu is held.
func (q *Counter) complete(c *count, now int64) {
	q.l.counts.leased.Add(uint64(c.taken - c.floor))
	if age := float64(now - q.answered); q.answered != never {
		q.others = (q.others*max(0, renewAfter-age) + max(0, float64(c.total-q.total-c.taken+q.taken))) / max(renewAfter, age)
	}
	q.taken, q.known, q.total, q.answered, q.low = c.taken, c.taken, c.total, now, (c.taken-q.spent)/4
	if q.deny = 0; c.taken-c.floor < c.need {
		q.deny = now + quotaPause
	}
	if c.tokens != q.tokens {
		q.taken = min(q.taken, q.spent)
	}
}

// sweepLater calls sweep in a while, unless Redis counts just what was spent here. q.mu is held.
func (q *Counter) sweepLater() {
	if !q.sweeping && q.l.store != nil && !q.l.closed.Load() && q.known != q.spent {
		q.sweeping = true
		time.AfterFunc(quotaSweep, q.sweep)
	}
}

// sweep gives back an idle block, and reports what was admitted without Redis.
func (q *Counter) sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweeping = false
	if now := q.l.now(); q.known != max(q.spent, q.taken) || now-q.used >= givenBack {
		q.call(now, false)
	}
	q.sweepLater()
}

// status is what a response says of the quota, whose period ends at ends by this node's clock.
// It subtracts what other nodes may have taken since the last answer.
func (q *Counter) status(now, ends int64, refused bool) Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Status{ResetIn: time.Duration(max(1, ends-now)) * time.Microsecond}
	switch debt := max(0, q.spent-q.taken); {
	case !refused:
		s.Remaining = max(0, min(q.tokens, max(0, q.left(min(now, q.answered+renewAfter), 1.5))+q.taken-q.spent))
	case q.answered != never && q.total+debt >= q.tokens:
		s.RetryIn = s.ResetIn
	default: // this node's part is spent
		s.RetryIn = min(heartbeatInterval, s.ResetIn)
	}
	return s
}

// close reports for the last time what this node has taken, and gives back its blocks.
func (qs *quotas) close(ctx context.Context) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	var all errgroup.Group
	all.SetLimit(maxCalls)
	for _, q := range qs.all {
		all.Go(func() error { q.close(ctx); return nil })
	}
	_ = all.Wait()
}

func (q *Counter) close(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flight != nil {
		q.wait(math.MaxInt64)
	}
	if q.number > 0 && ctx.Err() == nil && !q.l.shardOf(q.key).down.Load() {
		q.flight, q.used = make(chan struct{}), never // what is held goes back
		c := q.begin(q.l.now(), false)
		c.last = 1 // no other call may say so: what comes after the last one counts once more
		go q.send(c)
		q.wait(math.MaxInt64)
	}
}

// QuotaUse is how much of a quota is used, as far as a node knows.
type QuotaUse struct {
	Workspace string
	Part      float64 // 1 = it is used up
}

// stats adds the quotas of this moment that are used the most.
func (qs *quotas) stats(s *Stats) {
	used := map[string]float64{}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.all {
		q.mu.Lock()
		if q.spent > q.taken && q.l.store != nil {
			s.Owing++
		}
		if asked := q.l.now() - q.used; q.answered != never && asked < shownFor && time.Now().UnixMicro() < q.until {
			used[q.workspace] = max(used[q.workspace], float64(q.total-q.taken+q.spent)/float64(q.tokens))
		}
		q.mu.Unlock()
	}
	for workspace, part := range used {
		s.Quotas = append(s.Quotas, QuotaUse{workspace, part})
	}
	slices.SortFunc(s.Quotas, func(a, b QuotaUse) int { return cmp.Compare(b.Part, a.Part) })
	s.Quotas = s.Quotas[:min(len(s.Quotas), fullestQuotas)]
}
