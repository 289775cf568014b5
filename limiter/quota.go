package limiter

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

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
	until     int64 // the end of the period, in microseconds since 1970

	share          // its mu guards all below
	tokens int64   // requests in the period
	spent  int64   // of them, those admitted here
	taken  int64   // here; what is above spent may be spent, what is below is a debt
	known  int64   // what Redis counts as taken here; -1 = not known, because a call failed
	total  int64   // taken by all nodes, as of the last answer
	others float64 // taken by other nodes in a microsecond, lately

	number int64 // of the last call
	more   bool  // the next one takes a block, even if no request waits
	low    int64 // a balance below it starts a call
	before int64 // spent when the last call began

	// Microseconds of this node's time.
	began, answered, used, deny int64
}

// count is one call to a quota's count, with the answer: see quota.lua.
type count struct {
	counter                                                     *Counter
	key                                                         string
	tokens, run, number, floor, need, want, nodes, last, lifeMS int64
	taken, total                                                int64
}

const (
	never = math.MinInt64 / 2

	leastBlock    = 8             // tokens that a node takes at least, while many are left
	blockFor      = 5             // seconds that a block lasts
	renewAfter    = 5_000_000     // microseconds after which a request renews what is known of the others
	givenBack     = 20_000_000    // microseconds without a request after which a block goes back
	quotaPause    = 1_000_000     // microseconds until the next call to a quota that is used up: blocks may have gone back
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

// forget forgets the quota if its period is over. If the clock was set back since the timer
// began, the period is not over, and forget is called again.
func (q *Counter) forget() {
	q.l.quotas.mu.Lock()
	defer q.l.quotas.mu.Unlock()
	if left := time.Until(time.UnixMicro(q.until).Add(quotaKept)); left > 0 {
		time.AfterFunc(left, q.forget)
		return
	}
	delete(q.l.quotas.all, q.key)
}

func (q *Counter) retry(now int64) lease.Outcome { return q.take(now) }

func (q *Counter) take(now int64) lease.Outcome {
	q.used = now
	switch {
	case q.denies(now):
		return lease.Denied
	case q.spent >= q.taken:
		return lease.NeedRemote
	}
	q.spent++
	if (q.taken-q.spent < q.low || now-q.answered > renewAfter) && now >= q.deny {
		q.more = true
		requestCall(q)
	}
	return lease.Granted
}

func (q *Counter) denies(now int64) bool { return q.spent >= q.taken && now < q.deny }

// patience is longer if this node does not know what is left, because it refuses then.
func (q *Counter) patience() int64 {
	if q.answered == never {
		return lease.MaxWait
	}
	return q.share.patience()
}

// takeAlone decides by this node's part of what is left.
func (q *Counter) takeAlone(now, ahead int64) (lease.Outcome, Status) {
	ok := q.l.mode == FailAllow
	if q.l.mode == FailLocal {
		ok = (q.answered != never || q.shard.refuses()) && q.spent-q.taken < q.left(now, 1)/max(1, q.shard.fleet().Nodes)
	}
	if !ok {
		return lease.Denied, q.status(now, ahead, lease.Denied)
	}
	q.spent++
	q.l.active.add(q)
	return lease.Granted, q.status(now, ahead, lease.Granted)
}

// left is how much of the quota no node has taken, if the others have taken since the last
// answer so many times what they usually do. q.mu is held.
func (q *Counter) left(now int64, times float64) int64 {
	return q.tokens - q.total - int64(times*q.others*float64(max(0, now-q.answered)))
}

func (q *Counter) refund(int64, bool) { q.spent-- }

// begin makes the next call. With it, an idle block goes back.
func (q *Counter) begin(now int64, giveBack bool) call {
	recent := float64(q.spent-q.before) / max(1, float64(now-q.began)/1e6)
	q.began, q.before = now, q.spent
	q.number++
	c := &count{counter: q, key: q.key, tokens: q.tokens, run: q.l.run, number: q.number, nodes: max(1, q.shard.fleet().Nodes),
		lifeMS: max(1, (q.until-time.Now().UnixMicro())/1000+quotaKept.Milliseconds())}
	switch {
	case giveBack:
		c.last = 1 // no other call may say so: what comes after the last one counts once more
		q.taken = min(q.taken, q.spent)
	case q.more || len(q.waiters) > 0:
		c.need, c.want = int64(len(q.waiters)), max(0, max(leastBlock, int64(blockFor*recent))-max(0, q.taken-q.spent))
	case now-q.used >= givenBack:
		q.taken = min(q.taken, q.spent)
	}
	q.more = false
	c.floor = max(q.spent, q.taken)
	return c
}

func (c *count) request() (script, string, []any) {
	return quotaScript, c.key, []any{c.tokens, c.run, c.number, c.floor, c.need, c.want, c.nodes, c.last, c.lifeMS}
}

func (c *count) read(n []int64) { c.taken, c.total = n[0], n[1] }

func (c *count) complete(err error, _ int64) {
	q := c.counter
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.l.now()
	if err != nil {
		q.known = -1
	} else {
		q.apply(c, now)
	}
	q.l.active.add(q)
	endCall(q, now, err != nil && q.answered != never)
}

// apply applies an answer. However late it is, the block may be spent. q.mu is held.
func (q *Counter) apply(c *count, now int64) {
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

// isActive reports whether Redis does not count just what was spent here.
func (q *Counter) isActive() bool { return q.l.store != nil && q.known != q.spent }

// sweep reports whether a call should give back an idle block, or report what was admitted without Redis.
func (q *Counter) sweep(now int64) bool {
	return q.known != max(q.spent, q.taken) || now-q.used >= givenBack
}

func (q *Counter) holds(int64) int64 { return q.taken - q.spent }
func (q *Counter) owes() bool        { return q.spent > q.taken }

// status subtracts what other nodes may have taken since the last answer.
func (q *Counter) status(now, ahead int64, outcome lease.Outcome) Status {
	s := Status{ResetIn: time.Duration(max(1, q.until-now-ahead)) * time.Microsecond}
	switch debt := max(0, q.spent-q.taken); {
	case outcome != lease.Denied:
		s.Remaining = max(0, min(q.tokens, max(0, q.left(min(now, q.answered+renewAfter), 1.5))+q.taken-q.spent))
	case q.answered != never && q.total+debt >= q.tokens:
		s.RetryIn = s.ResetIn
	default: // this node's part is spent
		s.RetryIn = min(heartbeatInterval, s.ResetIn)
	}
	return s
}

// QuotaUse is how much of a quota is used, as far as a node knows.
type QuotaUse struct {
	Workspace string
	Part      float64 // 1 = it is used up
}

// each calls do for each quota, with its mu held.
func (qs *quotas) each(do func(q *Counter)) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.all {
		q.mu.Lock()
		do(q)
		q.mu.Unlock()
	}
}

// stats adds the quotas of this moment that are used the most.
func (qs *quotas) stats(s *Stats) {
	used := map[string]float64{}
	qs.each(func(q *Counter) {
		if asked := q.l.now() - q.used; q.answered != never && asked < shownFor && time.Now().UnixMicro() < q.until {
			used[q.workspace] = max(used[q.workspace], float64(q.total-q.taken+q.spent)/float64(q.tokens))
		}
	})
	for workspace, part := range used {
		s.Quotas = append(s.Quotas, QuotaUse{workspace, part})
	}
	slices.SortFunc(s.Quotas, func(a, b QuotaUse) int { return cmp.Compare(b.Part, a.Part) })
	s.Quotas = s.Quotas[:min(len(s.Quotas), fullestQuotas)]
}
