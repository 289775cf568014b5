package limiter

import (
	"cmp"
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

	limit          // its mu guards all below
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
	began    int64 // when the last call began
	answered int64 // when one was last answered; unknown = none was
	used     int64 // when the last request came
	deny     int64 // before it there is no token
}

const (
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

// get returns the quota of a workspace for a period. If there is none yet, it makes one.
func (qs *quotas) get(l *Limiter, workspace, period string, ends time.Time) *Counter {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	key := "{" + workspace + "}:q:" + period
	q := qs.all[key]
	if q == nil {
		q = &Counter{l: l, workspace: workspace, until: ends.UnixMicro(), began: l.now(),
			limit: limit{key: key, shard: l.shardOf(key), unknown: l.store != nil}} // without Redis nothing is taken elsewhere
		q.law = q
		qs.all[key] = q
		time.AfterFunc(time.Until(ends)+quotaKept, q.forget)
	}
	return q
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

// setTokens sets how many requests the quota has. A block of the old number goes back.
func (q *Counter) setTokens(tokens int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tokens == tokens {
		return
	}
	q.taken = min(q.taken, q.spent)
	q.tokens, q.deny = tokens, 0
	q.l.active.add(&q.limit, q.l.now())
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

func (q *Counter) decide(now moment, how manner) (outcome lease.Outcome, s Status) {
	refuses := q.spent >= q.taken && now.at < q.deny
	switch how {
	case takeOffline:
		outcome = q.takeOffline(now.at)
	case look:
		if refuses {
			outcome = lease.Denied
		}
	default:
		q.used = now.at
		if refuses {
			outcome = lease.Denied
		} else if q.spent < q.taken {
			q.takeHere(now.at)
			outcome = lease.Granted
		}
	}
	return outcome, q.status(now, outcome)
}

// takeHere takes a token of the block.
func (q *Counter) takeHere(now int64) {
	q.spent++
	if (q.taken-q.spent < q.low || now-q.answered > renewAfter) && now >= q.deny {
		q.more = true
		q.requestCall()
	}
}

// takeOffline decides by this node's part of what is left.
func (q *Counter) takeOffline(now int64) lease.Outcome {
	ok := q.l.mode == FailAllow
	if q.l.mode == FailLocal {
		ok = (!q.unknown || q.shard.refuses()) && q.spent-q.taken < q.left(now, 1)/max(1, q.shard.fleet().Nodes)
	}
	if !ok {
		return lease.Denied
	}
	q.spent++
	q.l.active.add(&q.limit, now)
	return lease.Granted
}

// left is how much of the quota no node has taken, if the others have taken since the last
// answer so many times what they usually do. q.mu is held.
func (q *Counter) left(now int64, times float64) int64 {
	return q.tokens - q.total - int64(times*q.others*float64(max(0, now-q.answered)))
}

// begin makes the next call: see quota.lua. With it, an idle block goes back.
func (q *Counter) begin(now int64, giveBack bool) *call {
	recent := float64(q.spent-q.before) / max(1, float64(now-q.began)/1e6)
	q.began, q.before = now, q.spent
	q.number++
	need, want, last := int64(0), int64(0), int64(0)
	switch {
	case giveBack:
		last = 1 // no other call may say so: what comes after the last one counts once more
		q.taken = min(q.taken, q.spent)
	case q.more || len(q.waiters) > 0:
		need = int64(len(q.waiters))
		want = max(0, max(leastBlock, int64(blockFor*recent))-max(0, q.taken-q.spent))
	case now-q.used >= givenBack:
		q.taken = min(q.taken, q.spent)
	}
	q.more = false
	tokens, floor, nodes := q.tokens, max(q.spent, q.taken), max(1, q.shard.fleet().Nodes)
	life := max(1, (q.until-time.Now().UnixMicro())/1000+quotaKept.Milliseconds())
	return &call{script: quotaScript, limit: &q.limit, key: q.key, arguments: []any{tokens, q.l.run, q.number, floor, need, want, nodes, last, life},
		apply: func(n []int64, now int64) {
			if n == nil {
				q.known = -1
				return
			}
			q.apply(n[0], n[1], now)
			q.l.counts.leased.Add(uint64(n[0] - floor))
			q.deny = 0
			if n[0]-floor < need {
				q.deny = now + quotaPause
			}
			if tokens != q.tokens { // a block of the old number goes back
				q.taken = min(q.taken, q.spent)
			}
		}}
}

// apply applies an answer: what is taken here, and in all. However late it is, the block may be spent.
func (q *Counter) apply(taken, total, now int64) {
	if age := float64(now - q.answered); !q.unknown {
		q.others = (q.others*max(0, renewAfter-age) + max(0, float64(total-q.total-taken+q.taken))) / max(renewAfter, age)
	}
	q.taken, q.known, q.total, q.low = taken, taken, total, (taken-q.spent)/4
	q.answered, q.unknown = now, false
}

func (q *Counter) refund(int64, bool) { q.spent-- }

// inspect: it is active while Redis does not count just what was spent here. A call gives back an
// idle block, or reports what was admitted without Redis.
func (q *Counter) inspect(now int64) lease.Holdings {
	return lease.Holdings{Tokens: q.taken - q.spent, Owes: q.spent > q.taken, Active: q.l.store != nil && q.known != q.spent,
		Due: q.known != max(q.spent, q.taken) || now-q.used >= givenBack}
}

// status subtracts what other nodes may have taken since the last answer.
func (q *Counter) status(now moment, outcome lease.Outcome) Status {
	s := Status{ResetIn: time.Duration(max(1, q.until-now.wall)) * time.Microsecond}
	debt := max(0, q.spent-q.taken)
	switch {
	case outcome != lease.Denied:
		s.Remaining = max(0, min(q.tokens, max(0, q.left(min(now.at, q.answered+renewAfter), 1.5))+q.taken-q.spent))
	case !q.unknown && q.total+debt >= q.tokens:
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

// stats adds the quotas of this moment that are used the most.
func (qs *quotas) stats(s *Stats) {
	used := map[string]float64{}
	qs.each(func(q *Counter) {
		if asked := q.l.now() - q.used; !q.unknown && asked < shownFor && time.Now().UnixMicro() < q.until {
			used[q.workspace] = max(used[q.workspace], float64(q.total-q.taken+q.spent)/float64(q.tokens))
		}
	})
	for workspace, part := range used {
		s.Quotas = append(s.Quotas, QuotaUse{workspace, part})
	}
	slices.SortFunc(s.Quotas, func(a, b QuotaUse) int { return cmp.Compare(b.Part, a.Part) })
	s.Quotas = s.Quotas[:min(len(s.Quotas), fullestQuotas)]
}
