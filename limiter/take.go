package limiter

import "time"

// Take takes one token from each bucket that is not nil, or none from any.
// A nil bucket is unlimited. It never waits longer than the budget.
func (l *Limiter) Take(key, workspace *Bucket) Decision {
	if workspace == key {
		workspace = nil
	}
	d := l.decide(key, workspace)
	switch {
	case key != nil:
		key.stripe.count(&d)
	case workspace != nil:
		workspace.stripe.count(&d)
	default:
		l.tally.stripes[0].count(&d)
	}
	return d
}

// decide is the fast path: two leases that have a token.
func (l *Limiter) decide(key, workspace *Bucket) (d Decision) {
	var pk, pw *Policy
	if key != nil {
		if pk = key.policy.Load(); pk.r == 0 {
			return Decision{RetryAfter: blockedRetry, Refused: Key, Source: SourceBlocked}
		}
	}
	if workspace != nil {
		if pw = workspace.policy.Load(); pw.r == 0 {
			return Decision{RetryAfter: blockedRetry, Refused: Workspace, Source: SourceBlocked}
		}
	}
	if pk == nil && pw == nil {
		return Decision{Allowed: true, Source: SourceUnlimited}
	}
	now := l.now()
	k, w := spent, spent
	if pk != nil {
		k = l.spend(key, now)
	}
	if pw != nil {
		w = l.spend(workspace, now)
	}
	d.Source = SourceLease
	if l.local != nil {
		d.Source = SourceMemory
	}
	if k != spent || w != spent {
		t := l.trips.Get().(*trip)
		t.leg[0] = leg{bucket: key, policy: pk, verdict: k}
		t.leg[1] = leg{bucket: workspace, policy: pw, verdict: w}
		l.travel(t, now, &d)
		t.leg = [2]leg{}
		l.trips.Put(t)
		return d
	}
	d.Allowed = true
	if pk != nil {
		d.Key = key.level(pk, now)
	}
	if pw != nil {
		d.Workspace = workspace.level(pw, now)
	}
	return d
}

func (l *Limiter) spend(b *Bucket, now int64) verdict {
	v, prefetch := b.lease.spend(now)
	if prefetch {
		l.tally.prefetches.Add(1)
		l.want(b)
	}
	return v
}

// trip is a request that no lease could answer.
type trip struct {
	leg   [2]leg // key, workspace
	done  chan struct{}
	timer *time.Timer
}

// leg is one bucket of it; verdict spent where there is no bucket.
type leg struct {
	bucket  *Bucket
	policy  *Policy
	verdict verdict
	waiter  waiter
	asked   bool // waits in the lease's queue, or waited
	alone   bool // this node decided alone
	wait    int64
	left    int64 // alone: tokens
}

func newTrip() *trip {
	t := &trip{done: make(chan struct{}, 2), timer: time.NewTimer(time.Hour)}
	t.timer.Stop()
	return t
}

// travel brings both legs to a verdict, and a token back that the other leg's
// refusal made useless.
func (l *Limiter) travel(t *trip, now int64, d *Decision) {
	if t.leg[0].verdict != denied && t.leg[1].verdict != denied {
		if l.local != nil {
			l.askMemory(t, now)
		} else {
			l.askRedis(t, now)
		}
		now = l.now()
		for i := range t.leg {
			if t.leg[i].asked && l.local == nil {
				d.Source = SourceRedis
			}
		}
		for i := range t.leg {
			if t.leg[i].verdict == empty && t.leg[1-i].verdict != denied {
				l.decideAlone(&t.leg[i], now)
				d.Source = SourceLocalFallback
			}
		}
	}
	d.Allowed = t.leg[0].verdict == spent && t.leg[1].verdict == spent
	if !d.Allowed {
		for i := range t.leg {
			l.refuse(&t.leg[i], Which(i+1), now, d)
		}
	}
	d.Key, d.Workspace = t.leg[0].level(now), t.leg[1].level(now)
}

// askMemory visits the in-process buckets: key before workspace.
func (l *Limiter) askMemory(t *trip, now int64) {
	for i := range t.leg {
		if g := &t.leg[i]; g.verdict == empty {
			if g.verdict = l.visit(g.bucket, now, 1); g.verdict == denied {
				return // the other leg stays as it is: its token, if any, goes back
			}
		}
	}
}

// askRedis waits in the queues of both leases, and no longer than the budget.
func (l *Limiter) askRedis(t *trip, now int64) {
	pending := 0
	for i := range t.leg {
		g := &t.leg[i]
		if g.verdict != empty || l.homeOf(g.bucket).away.Load() || now < g.bucket.lease.ill.Load() {
			continue
		}
		g.waiter.done = t.done
		if g.verdict = g.bucket.lease.enter(&g.waiter, *g.policy, now); g.verdict == empty {
			g.asked = true
			pending++
			l.want(g.bucket)
		}
	}
	if pending == 0 {
		return
	}
	t.timer.Reset(l.budget)
	over := false
	for pending > 0 && !over {
		select {
		case <-t.done:
			pending--
		case <-t.timer.C:
			over = true
		}
	}
	t.timer.Stop()
	for i := range t.leg {
		g := &t.leg[i]
		if !g.asked {
			continue
		}
		switch g.bucket.lease.leave(&g.waiter) {
		case given:
			g.verdict = spent
		case rejected:
			g.verdict = denied
		case waiting:
			l.tally.missed.Add(1)
			pending-- // it was never answered
		}
	}
	for ; pending > 0; pending-- { // answered at the very moment the budget was over
		<-t.done
	}
}

// decideAlone is what becomes of a request that Redis cannot be asked about.
func (l *Limiter) decideAlone(g *leg, now int64) {
	g.alone = true
	ok := l.mode == FailAllow
	switch l.mode {
	case FailLocal:
		ok, g.wait, g.left = g.bucket.lease.alone(*g.policy, now, l.nodes())
	case FailAllow:
		g.bucket.lease.admitAnyway(*g.policy, now, l.nodes())
	case FailDeny:
		g.wait = int64(probeEvery / time.Microsecond)
	}
	g.verdict = denied
	if ok {
		g.verdict = spent
		l.tally.offLedger.Add(1)
		l.homeOf(g.bucket).watch(g.bucket)
		if !l.homeOf(g.bucket).away.Load() {
			l.want(g.bucket) // Redis was only late: it hears of it at once
		}
	}
}

// refuse does a refused request's part of one leg.
func (l *Limiter) refuse(g *leg, which Which, now int64, d *Decision) {
	switch {
	case g.bucket == nil || g.verdict == empty:
	case g.verdict == spent:
		if g.alone {
			l.tally.offLedger.Add(^uint64(0))
		}
		l.refund(g.bucket, now, g.alone)
	default:
		wait := g.wait
		if !g.alone {
			wait = g.bucket.lease.deny.Load() - now
		}
		if retry := micros(max(1, wait)); retry > d.RetryAfter {
			d.RetryAfter, d.Refused = retry, which
		}
	}
}

func (g *leg) level(now int64) Level {
	switch {
	case g.bucket == nil:
		return Level{}
	case g.alone:
		return Level{Remaining: g.left, Full: micros(ceilDiv(max(0, g.policy.Burst-g.left)*g.policy.p, g.policy.r))}
	}
	return g.bucket.level(g.policy, now)
}
