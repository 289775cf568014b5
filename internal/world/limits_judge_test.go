package world_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"listedge/internal/world"
	"listedge/limiter"
	"listedge/limiter/lease"
)

// What a world of limits judges.
var (
	neverOver    = promise{"Limits", "Over all nodes and any span of t seconds, at most `burst + rate × t` requests are admitted"}
	freeRefusal  = promise{"Limits", "A refused request costs no token."}
	slowIsSame   = promise{"Limits", "A slow Redis does not change a limit."}
	failureAdds  = promise{"Limits", "[What each failure costs](LIMITS.md#what-each-failure-costs) says what each other failure adds"}
	quotaIsExact = promise{"Limits", "A quota of requests for a calendar day or month (UTC) is admitted exactly over all nodes"}
	hungCosts    = promise{"Failures", "Redis down or hung costs a request at most 10 ms for its limit"}
	slowCosts    = promise{"Failures", "A slow Redis that answers costs a limit at most two round trips, and never more than 125 ms."}
	ofLimits     = []promise{neverOver, freeRefusal, slowIsSame, failureAdds, quotaIsExact, hungCosts, slowCosts}
)

// judge is what a world of limits knows of what was admitted.
type judge struct {
	broken  string                  // the first sentence that does not hold, and how; empty = all hold
	buckets map[string]*bucketJudge // by key in Redis
	quota   quotaJudge
	slowest time.Duration    // round trip, ever
	granted int64            // tokens that were granted so lately that requests may still spend them
	decided func(r *request) // called for each that was answered; nil = none
}

// breaks notes that a promise does not hold, and how.
func (w *limits) breaks(p promise, how string, of ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf("%s: %q: %s", p.heading, p.sentence, fmt.Sprintf(how, of...))
		w.Tracef("BROKEN: %s", w.broken)
	}
}

// oracle checks that over any span of t seconds at most burst + rate*t requests are admitted. Its unit is a millionth of a micro-token.
type oracle struct {
	rate, burst, admitted int64
	lowest                int64 // the smallest value, before any admission, of admitted minus what was refilled until then
}

const scaled = lease.Token * 1_000_000

// start sets the earliest moment at which a span may begin: 0, if it is not called.
func (o *oracle) start(now int64) { o.lowest = o.admitted*scaled - now*o.rate }

// admit records an admission. It returns by how many tokens the worst span that ends with it exceeds the promise; 0 or less = none does.
func (o *oracle) admit(now int64) float64 {
	before := o.admitted*scaled - now*o.rate
	o.lowest = min(o.lowest, before)
	o.admitted++
	return float64(before+scaled-o.lowest-o.burst*scaled) / scaled
}

// exact is a single bucket that decides every request at once. Its level is in micro-tokens, its rate in these a second.
type exact struct{ rate, burst, level, at int64 }

func exactly(p limiter.Policy, now int64) exact {
	return exact{p.Rate, p.Burst, p.Burst * lease.Token, now}
}

func (e *exact) take(now int64) bool {
	if e.burst == 0 {
		return true
	}
	earned := float64(max(0, now-e.at)) * float64(e.rate) / lease.Token
	e.level, e.at = int64(min(float64(e.burst*lease.Token), float64(e.level)+earned)), max(e.at, now)
	if e.level < lease.Token {
		return false
	}
	e.level -= lease.Token
	return true
}

// bucketJudge judges a bucket, policy by policy.
type bucketJudge struct {
	oracle
	key     string
	inRedis limiter.Policy
	most    int64   // tokens that may be spent at its beginning: what is held of the policy before may be more than the burst
	asking  int64   // requests under way that may give a token back, and of them the most at once
	peak    int64   // likewise
	worst   float64 // tokens above the promise, in the worst span so far
	spare   float64 // bursts that failures add
	until   time.Time
	cost    promise // the sentence that says so
}

// judged is the time of an oracle: Redis', if its clock had not been set.
func (w *limits) judged() int64 { return int64(float64(time.Since(w.began).Microseconds()) * w.pace) }

// watch begins to judge a bucket.
func (w *limits) watch(key string, p limiter.Policy) {
	if w.buckets == nil {
		w.buckets = map[string]*bucketJudge{}
	}
	if p.Burst > 0 {
		w.buckets[key] = &bucketJudge{key: key, oracle: oracle{rate: p.Rate, burst: p.Burst}, inRedis: p, most: p.Burst}
		w.buckets[key].start(w.judged())
	}
}

// bucket is what Redis has of a bucket.
func (w *limits) bucket(key string) (b world.Bucket, ok bool) {
	c := &world.RedisCall{Commands: [][]string{{"get", key}}}
	w.redis.Execute(c)
	stored, _ := c.Replies[0].(string)
	return world.UnpackBucket([]byte(stored))
}

// judgeBucket follows a bucket's policy, and what it holds, after a call.
func (w *limits) judgeBucket(c *scriptCall) {
	j := w.buckets[c.key]
	if j == nil {
		return
	}
	w.granted += c.granted
	w.After(lease.MaxWait*time.Microsecond, func() { w.granted -= c.granted })
	b, ok := w.bucket(c.key)
	if !ok {
		return
	}
	if !b.Sound() {
		w.breaks(neverOver, "after %+v more than the burst: %+v", c.bucket, b)
	}
	if b.Version == j.inRedis.Version {
		return
	}
	held := b.HeldNow + b.HeldBefore + c.granted
	w.answers(func(other *scriptCall) {
		if other.key == c.key {
			held += other.granted
		}
	})
	*j = bucketJudge{key: j.key, oracle: oracle{rate: b.Rate, burst: b.Burst}, inRedis: limiter.Policy{Rate: b.Rate, Burst: b.Burst, Version: b.Version},
		most: max(b.Burst, b.HeldNow+b.HeldBefore) + held, asking: j.asking, peak: j.asking, spare: j.spare, until: j.until, cost: j.cost, worst: j.worst}
	j.start(w.judged())
}

// fail lets failures add so many bursts from now until a while after they have ended.
func (w *limits) fail(bursts float64, lasts time.Duration) {
	until := time.Now().Add(lasts + 25*time.Second) // what nodes held may be spent for so long
	for _, j := range w.buckets {
		w.endFailure(j)
		j.spare = max(j.spare, bursts)
		j.cost = failureAdds
		if until.After(j.until) {
			j.until = until
		}
	}
}

// failAgain lets a failure add so many bursts to what others do.
func (w *limits) failAgain(bursts float64) {
	w.fail(0, 0)
	for _, j := range w.buckets {
		j.spare += bursts
	}
}

// endFailure lets spans begin anew once failures cost nothing any more.
func (w *limits) endFailure(j *bucketJudge) {
	if j.spare > 0 && time.Now().After(j.until) {
		j.spare = 0
		w.goBy(j, j.inRedis.Rate, j.inRedis.Burst)
	}
}

// arrives notes that a request is under way.
func (w *limits) arrives(r *request) {
	for _, j := range w.judges(r) {
		j.asking++
		j.peak = max(j.peak, j.asking)
	}
	r.client.offered++
	if r.ideal {
		r.client.ideal++
	}
}

// judges are those of its buckets, as far as they are watched.
func (w *limits) judges(r *request) (all []*bucketJudge) {
	for _, key := range []string{limiter.KeyBucket("w", r.client.name), limiter.WorkspaceBucket("w")} {
		if j := w.buckets[key]; j != nil {
			all = append(all, j)
		}
	}
	return all
}

// judgeAll judges what was answered at one moment. Which of the requests that waited together was admitted is of no account, so they are
// told in their order.
func (w *limits) judgeAll(of []*request) {
	slices.SortFunc(of, func(a, b *request) int { return a.number - b.number })
	for i, r := range of {
		for _, other := range of[i+1:] {
			if other.node == r.node && other.client == r.client && better(&other.decision, &r.decision) {
				r.decision, other.decision = other.decision, r.decision
			}
		}
		w.judgeRequest(r)
	}
}

func better(a, b *limiter.Decision) bool {
	rank := func(d *limiter.Decision) int {
		if d.Allowed {
			return 1
		}
		return 0
	}
	return cmp.Or(rank(a)-rank(b), int(a.Source)-int(b.Source), int(a.Key.Remaining-b.Key.Remaining), int(b.RetryAfter-a.RetryAfter),
		int(a.Quota.Remaining-b.Quota.Remaining), int(a.Workspace.Remaining-b.Workspace.Remaining)) > 0
}

func (w *limits) judgeRequest(r *request) {
	d, c := &r.decision, r.client
	for _, j := range w.judges(r) {
		j.asking--
	}
	if r.node.dead {
		return
	}
	w.counts[d.Source.String()]++
	if w.Traces() {
		w.Tracef("request %d of %s to %s, after %s: admitted %t by %s, %d left, retry after %s", r.number, c.name, r.node, r.ended.Sub(r.arrived), d.Allowed,
			d.Source, d.Key.Remaining, d.RetryAfter)
	}
	w.judgeWait(r)
	if w.decided != nil {
		w.decided(r)
	}
	if !d.Allowed {
		c.refused++
		return
	}
	c.admitted++
	if n := r.node.Stats().Nodes; w.mode == limiter.FailLocal && d.Source == limiter.SourceLocalFallback && r.node.beats > 4 && len(c.both()) == 1 &&
		c.policy.Burst > 0 && n > r.node.of(c).policy.Burst {
		w.breaks(failureAdds, "%s admits a request of %d nodes without Redis, and the burst is %d", r.node, n, c.policy.Burst)
	}
	for _, j := range w.judges(r) {
		if d.Source == limiter.SourceLocalFallback && j.key == limiter.KeyBucket("w", c.name) {
			w.without(j, r.node.of(c).policy)
		}
		w.judgeAdmission(j)
	}
	if c.tokens > 0 {
		w.judgeQuota(r)
	}
}

// without judges a bucket by what either of two policies admits: the one in Redis, and the one that a node without Redis knows. Redis may
// hear of a change later than the node.
func (w *limits) without(j *bucketJudge, known limiter.Policy) {
	if known.Rate > j.rate || known.Burst > j.burst {
		w.goBy(j, max(j.rate, known.Rate), max(j.burst, known.Burst))
	}
}

// goBy judges the bucket by this rate and burst from now on. Spans of time that it judges begin now.
func (w *limits) goBy(j *bucketJudge, rate, burst int64) {
	held := j.most - j.burst
	j.oracle, j.most = oracle{rate: rate, burst: burst}, burst+held
	j.start(w.judged())
}

// judgeAdmission judges one by a bucket.
func (w *limits) judgeAdmission(j *bucketJudge) {
	w.endFailure(j)
	over := j.admit(w.judged())
	j.worst = max(j.worst, over)
	late := 10 * time.Millisecond                         // how long before a request the token may have been debited that it is admitted by
	if j.burst < max(16, 3*max(8, int64(len(w.nodes)))) { // then nodes do not lease; one that is new takes its fleet for eight
		late = 125 * time.Millisecond
	}
	rate := float64(j.rate) / lease.Token
	most := float64(j.most-j.burst) + late.Seconds()*w.pace*rate + j.spare*float64(j.burst) + 1e-6
	if w.mode != limiter.FailDeny {
		most++
	}
	if len(w.clients[0].both()) > 1 { // a token that another limit refuses counts again
		most += float64(j.peak)
	}
	if over > most && w.mode != limiter.FailAllow {
		p := neverOver
		if j.spare > 0 {
			p = j.cost
		}
		w.breaks(p, "%s, %.3g/s, burst %d: %.2f tokens above the promise, of %.2f that may be, %.2f bursts of them by failures",
			j.key, rate, j.burst, over, most, j.spare)
	}
}

// judgeWait judges how long a request took.
func (w *limits) judgeWait(r *request) {
	waited := r.ended.Sub(r.arrived)
	w.mu.Lock()
	frozen := r.node.frozenTo.After(r.arrived)
	w.mu.Unlock()
	if waited > 0 {
		w.counts["waited"]++
	}
	most, p := lease.MaxWait*time.Microsecond, slowCosts
	if w.slowest < 5*time.Millisecond && r.client.tokens == 0 {
		most, p = limiter.DefaultBudget, hungCosts
	}
	if waited > most+time.Microsecond && !frozen {
		w.breaks(p, "request %d waited %s", r.number, waited)
	}
}

// quotaJudge judges a quota.
type quotaJudge struct {
	admitted int64
	most     int64 // that may be; more while nodes do not know of a change
	settled  time.Time
	next     int64   // what it has once all know
	spare    float64 // what failures add
	spent    map[*limited]int64
	lost     int64 // what Redis counts for nodes that were killed, and they have not spent
}

// judgeQuotaCall: after a call, Redis counts what its run has spent. One that comes later than the next is of no account: its node has
// given up, and may have given its block back.
func (w *limits) judgeQuotaCall(n *limited, c *scriptCall) {
	late := c.number < n.counted
	n.counted = max(n.counted, c.number)
	if !n.dead && !late && c.taken < c.floor {
		w.breaks(quotaIsExact, "Redis counts %d of %s, which has spent %d", c.taken, n, c.floor)
	}
}

// judgeQuota judges an admission.
func (w *limits) judgeQuota(r *request) {
	q := &w.quota
	if q.next > 0 && time.Now().After(q.settled) {
		q.most, q.next = max(q.admitted, q.next), 0
	}
	q.admitted++
	q.spent[r.node]++
	if float64(q.admitted) > float64(q.most)+q.spare && w.mode != limiter.FailAllow {
		w.breaks(quotaIsExact, "%d of %d are admitted, and failures add %.1f", q.admitted, q.most, q.spare)
	}
}

// remaining returns how many requests the fleet may still admit for the only client: the tokens in the bucket, those in answers, and
// those that nodes hold.
func (w *limits) remaining(c *client) int64 {
	key := limiter.KeyBucket("w", c.name)
	left := c.policy.Burst
	if b, ok := w.bucket(key); ok {
		earned := max(0, w.now()-b.RefilledAt) * b.Rate / lease.Token
		left = max(0, b.Level, min((b.Burst-b.HeldNow-b.HeldBefore)*lease.Token, b.Level+earned)) / lease.Token
	}
	w.answers(func(of *scriptCall) { left += of.granted + of.leased })
	for _, n := range w.nodes {
		left += n.Stats().LeasedHeld
	}
	return left
}

// client sends requests with one key. Its limits are those of the newest policy.
type client struct {
	name      string
	policy    limiter.Policy // zero = none
	workspace limiter.Policy // likewise
	tokens    int64          // of its workspace's quota; 0 = none
	ends      time.Time      // that quota's period
	exact     exact

	offered, admitted, refused, ideal int64
}

// both are its limits.
func (c *client) both() (of []limiter.Policy) {
	for _, p := range []limiter.Policy{c.policy, c.workspace} {
		if p.Burst > 0 {
			of = append(of, p)
		}
	}
	if c.tokens > 0 {
		of = append(of, limiter.Policy{Burst: c.tokens})
	}
	return of
}

// newClient has a client of so many limits.
func (w *limits) newClient(p, workspace limiter.Policy, tokens int64) *client {
	c := &client{name: fmt.Sprint("k", len(w.clients)), policy: p, workspace: workspace, tokens: tokens, ends: time.Now().Add(1000 * time.Hour)}
	c.exact = exactly(p, w.now())
	w.watch(limiter.KeyBucket("w", c.name), p)
	w.watch(limiter.WorkspaceBucket("w"), workspace)
	w.quota.most, w.quota.spent = tokens, map[*limited]int64{}
	w.clients = append(w.clients, c)
	return c
}

// share is what the fleet admits, as a share of what an exact bucket does; short is the share of the requests that it admits fewer.
func (c *client) share() float64 { return float64(c.admitted) / math.Max(1, float64(c.ideal)) }
func (c *client) short() float64 {
	return float64(c.ideal-c.admitted) / math.Max(1, float64(c.offered))
}
