package limiter

import "time"

// TakeAt takes one token from each bucket that is not nil, or none from any.
// A nil bucket is unlimited. It never waits longer than the budget. now was read
// by the caller, at most a tenth of a second ago: reading the clock once more
// costs more than the decision.
func (l *Limiter) TakeAt(now time.Time, key, workspace *Bucket) Decision {
	return l.take(l.since(now), key, workspace)
}

func (l *Limiter) take(now int64, key, workspace *Bucket) Decision {
	if workspace == key {
		workspace = nil
	}
	d := l.decide(now, key, workspace)
	switch {
	case key != nil:
		l.tally.stripes[key.stripe].count(d)
	case workspace != nil:
		l.tally.stripes[workspace.stripe].count(d)
	default:
		l.tally.stripes[0].count(d)
	}
	return d
}

// decide is the fast path: two leases that have a token, or one that has not
// and knows it.
func (l *Limiter) decide(now int64, key, workspace *Bucket) Decision {
	switch {
	case key != nil && key.blocked.Load():
		return Decision{RetryAfter: blockedRetry, Refused: Key, Source: SourceBlocked}
	case workspace != nil && workspace.blocked.Load():
		return Decision{RetryAfter: blockedRetry, Refused: Workspace, Source: SourceBlocked}
	case key == nil && workspace == nil:
		return Decision{Allowed: true, Source: SourceUnlimited}
	}
	k, w := spent, spent
	if key != nil {
		k = l.spend(key, now)
	}
	if workspace != nil {
		switch {
		case k != denied:
			w = l.spend(workspace, now)
		case workspace.lease.denies(now):
			w = denied
		}
	}
	switch {
	case k == spent && w == spent:
		return Decision{Allowed: true, Source: l.own}
	case k == denied || w == denied:
		return l.refuse(now, key, workspace, k, w)
	}
	t := l.trips.Get().(*trip)
	t.leg[0] = leg{bucket: key, verdict: k}
	t.leg[1] = leg{bucket: workspace, verdict: w}
	d := l.travel(t)
	t.leg = [2]leg{}
	l.trips.Put(t)
	return d
}

func (l *Limiter) spend(b *Bucket, now int64) verdict {
	v, prefetch := b.lease.spend(now)
	if v == empty && b.sip(now) {
		return spent
	}
	if prefetch {
		l.tally.prefetches.Add(1)
		l.want(b)
	}
	return v
}

// refuse ends a request that a lease refused: a token of the other goes back.
func (l *Limiter) refuse(now int64, key, workspace *Bucket, k, w verdict) Decision {
	d := Decision{Source: l.own}
	if k == denied {
		d.refuse(Key, key.lease.deny.Load()-now)
	} else if k == spent && key != nil {
		l.refund(key, now, false)
	}
	if w == denied {
		d.refuse(Workspace, workspace.lease.deny.Load()-now)
	} // else none was taken
	return d
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
	verdict verdict
	waiter  waiter
	asked   bool  // waits in the lease's queue, or waited
	alone   bool  // this node decided alone
	wait    int64 // refused alone: microseconds until there is a token
}

func newTrip() *trip {
	t := &trip{done: make(chan struct{}, 2), timer: time.NewTimer(time.Hour)}
	t.timer.Stop()
	return t
}

// travel brings both legs, of which neither was refused, to a verdict, and a
// token back that the other leg's refusal made useless.
func (l *Limiter) travel(t *trip) Decision {
	d, now := Decision{Source: l.own}, l.now()
	if l.local != nil {
		l.askMemory(t, now)
	} else {
		l.askRedis(t, now)
		now = l.now()
	}
	for i := range t.leg {
		if t.leg[i].asked {
			d.Source = SourceRedis
		}
	}
	for i := range t.leg {
		if t.leg[i].verdict == empty && t.leg[1-i].verdict != denied {
			l.decideAlone(&t.leg[i], now)
			d.Source = SourceLocalFallback
		}
	}
	if d.Allowed = t.leg[0].verdict == spent && t.leg[1].verdict == spent; d.Allowed {
		return d
	}
	for i := range t.leg {
		l.refuseLeg(&t.leg[i], Which(i+1), now, &d)
	}
	return d
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

// askRedis waits in the queues of both leases, and no longer than link.wait.
func (l *Limiter) askRedis(t *trip, now int64) {
	pending := 0
	for i := range t.leg {
		g := &t.leg[i]
		if g.verdict != empty {
			continue
		}
		if home := l.homeOf(g.bucket); home.away.Load() || home.silent(now) || now < g.bucket.lease.ill.Load() {
			continue
		}
		g.waiter.done = t.done
		if g.verdict, g.asked = g.bucket.lease.enter(&g.waiter, g.bucket.Policy(), now); g.asked {
			pending++
		}
	}
	switch {
	case pending == 0:
		return
	case pending == 2:
		l.wantBoth(t.leg[0].bucket, t.leg[1].bucket)
	case t.leg[0].asked:
		l.want(t.leg[0].bucket)
	default:
		l.want(t.leg[1].bucket)
	}
	t.timer.Reset(time.Duration(l.link.wait()) * time.Microsecond)
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
			pending-- // it was never answered
		}
	}
	for ; pending > 0; pending-- { // answered at the very moment the budget was over
		<-t.done
	}
}

// decideAlone is what becomes of a request that Redis cannot be asked about.
func (l *Limiter) decideAlone(g *leg, now int64) {
	p := g.bucket.Policy()
	g.alone = true
	ok := l.mode == FailAllow
	switch l.mode {
	case FailLocal:
		ok, g.wait = g.bucket.lease.alone(p, now, l.nodes())
	case FailAllow:
		g.bucket.lease.admitAnyway(p, now, l.nodes())
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

// refuseLeg does a refused request's part of one leg.
func (l *Limiter) refuseLeg(g *leg, which Which, now int64, d *Decision) {
	switch {
	case g.bucket == nil || g.verdict == empty:
	case g.verdict == spent:
		if g.alone {
			l.tally.offLedger.Add(^uint64(0))
		}
		l.refund(g.bucket, now, g.alone)
	case g.alone:
		d.refuse(which, g.wait)
	default:
		d.refuse(which, g.bucket.lease.deny.Load()-now)
	}
}
