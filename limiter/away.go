package limiter

import (
	"context"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// settleAtOnce is how many buckets' debts, or returns, travel in one pipeline.
const settleAtOnce = 64

// fallback is this node deciding alone: the store made of the handles' own
// local buckets. (By their full rate; once nodes know how many they are, by
// their part of it.)
type fallback struct{ l *Limiter }

func (f fallback) visit(_ context.Context, calls []call) error {
	now := f.l.now()
	for i := range calls {
		b := calls[i].bucket
		b.visitLocal(&calls[i], now)
		f.l.owe(b)
	}
	return nil
}

// owe puts the bucket on the keeper's list.
func (l *Limiter) owe(b *Bucket) {
	if b.listed.Swap(true) {
		return
	}
	l.owingMu.Lock()
	l.owing[b] = struct{}{}
	l.owingMu.Unlock()
	l.nudge()
}

// owed takes up to settleAtOnce buckets off the list.
func (l *Limiter) owed() (some []*Bucket) {
	l.owingMu.Lock()
	defer l.owingMu.Unlock()
	for b := range l.owing {
		delete(l.owing, b)
		b.listed.Store(false)
		if some = append(some, b); len(some) == settleAtOnce {
			break
		}
	}
	return some
}

// nudge tells the keeper that there is something to settle or to probe.
func (l *Limiter) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *Limiter) newBreaker() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     probeEvery,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tripAfter },
		// Runs under the breaker's lock: nothing here may wait. The keeper logs.
		OnStateChange: func(_ string, _, to gobreaker.State) {
			l.away.Store(to != gobreaker.StateClosed)
			l.outage.turn(to != gobreaker.StateClosed, l.clock())
			l.nudge()
		},
	})
}

// outage adds up the time for which the breaker was not closed.
type outage struct {
	mu    sync.Mutex // guards all below
	since time.Time  // zero = Redis is there
	past  time.Duration
	last  error // why Redis last failed
}

func (o *outage) turn(away bool, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case away && o.since.IsZero():
		o.since = now
	case !away && !o.since.IsZero():
		o.past += now.Sub(o.since)
		o.since = time.Time{}
	}
}

func (o *outage) total(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return o.past
	}
	return o.past + now.Sub(o.since)
}

// keep runs for the limiter's life: it carries tokens back to Redis, tries
// Redis while it is away and settles debts, so that no request has to.
func (l *Limiter) keep() {
	defer close(l.kept)
	timer := time.NewTimer(probeEvery)
	timer.Stop()
	armed, logged := false, false
	arm := func() {
		if !armed {
			// A little after the breaker's own timeout, to find it half-open.
			timer.Reset(probeEvery + time.Millisecond)
			armed = true
		}
	}
	for {
		select {
		case b := <-l.returns:
			l.sendReturns(b)
		case <-l.wake:
			arm()
		case <-timer.C:
			armed = false
			if !l.settle() {
				arm()
			}
		case <-l.stop:
			l.sendReturns(nil)
			l.settle()
			timer.Stop()
			return
		}
		if away := l.away.Load(); away != logged {
			logged = away
			l.logTurn(away)
		}
	}
}

func (l *Limiter) logTurn(away bool) {
	if away {
		l.outage.mu.Lock()
		err := l.outage.last
		l.outage.mu.Unlock()
		l.logger.Warn("redis is away: this node limits alone", "error", err)
		return
	}
	l.logger.Info("redis is back: limits are shared again", "away", l.outage.total(l.clock()))
}

// settle debits what was spent locally and so tries Redis while it is away. It
// reports whether nothing is left to do.
func (l *Limiter) settle() (done bool) {
	for {
		some := l.owed()
		if len(some) == 0 && !l.away.Load() {
			return true
		}
		due, debts := l.load(some)
		if len(due) == 0 {
			if !l.away.Load() {
				continue
			}
			due, debts = append(due, l.probe()), append(debts, debt{})
		}
		if l.visitShared(due) == nil {
			l.conclude(due, debts, true)
			continue
		}
		l.unclaim(due, debts)
		return false
	}
}

// load claims what the buckets owe and makes the calls that will pay it.
func (l *Limiter) load(some []*Bucket) (due []call, debts []debt) {
	for _, b := range some {
		d, busy := b.claim(l.now())
		switch {
		case busy != nil: // a Take is paying, and will list it again if it fails
			continue
		case d.tokens == 0: // paid or returned in the meantime
			b.settled(d)
			continue
		}
		c := call{bucket: b, policy: b.Policy(), debt: d.tokens}
		if c.policy.r == 0 { // blocked by now: debit by what it was spent under
			c.policy = d.policy
		}
		due, debts = append(due, c), append(debts, d)
	}
	return due, debts
}

// probe is a visit that does no more than prove that Redis can run the script
// and write: a replica that only reads does not close the breaker.
func (l *Limiter) probe() call {
	p := Policy{Rate: microsPerSecond, Burst: 1, r: 1, p: 1}
	return call{bucket: l.Bucket("rl:{probe}", p), policy: p, need: 1}
}

// visitShared is the keeper's way to Redis: past the breaker, and an answer
// later than a request would wait for counts as a failure there.
func (l *Limiter) visitShared(calls []call) error {
	report, err := l.breaker.Allow()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), flightTimeout)
	defer cancel()
	began := time.Now()
	err = l.shared.visit(ctx, calls)
	verdict := err
	if verdict == nil && time.Since(began) > l.budget {
		verdict = errBudget
	}
	if verdict != nil {
		l.fail(verdict)
	}
	report(verdict)
	return err
}

// sendReturns carries first, and what else waits in the queue, back to Redis.
func (l *Limiter) sendReturns(first *Bucket) {
	for more := true; more; {
		tokens := make(map[*Bucket]int64)
		if first != nil {
			tokens[first]++
			first = nil
		}
		for more = true; more && len(tokens) < settleAtOnce; {
			select {
			case b := <-l.returns:
				tokens[b]++
			default:
				more = false
			}
		}
		calls := make([]call, 0, len(tokens))
		sum := uint64(0)
		for b, n := range tokens {
			if p := b.Policy(); p.r > 0 {
				calls = append(calls, call{bucket: b, policy: p, ret: n})
				sum += uint64(n)
			}
		}
		if len(calls) == 0 {
			continue
		}
		if err := l.visitShared(calls); err != nil {
			l.tally.dropped.Add(sum)
			continue
		}
		l.tally.returned.Add(sum)
		now := l.now()
		for i := range calls {
			calls[i].bucket.note(&calls[i], now)
		}
	}
}
