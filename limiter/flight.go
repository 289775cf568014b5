package limiter

import (
	"context"
	"sync/atomic"
	"time"
)

// flight is one request's visit to Redis, on a goroutine of its own: the
// request waits for it no longer than the budget, whatever the client's
// timeouts, dialling and pool do.
type flight struct {
	pair
	err  error
	done chan struct{} // closed when pair and err may be read
	over atomic.Bool   // set by whoever comes first, the answer or the request giving up
}

// ask asks Redis within the budget. Not ok: this node must decide.
func (l *Limiter) ask(p pair) (d Decision, ok bool) {
	if !l.depart() {
		return Decision{}, false
	}
	report, err := l.breaker.Allow()
	if err != nil {
		l.flights.Done()
		return Decision{}, false
	}
	f := &flight{pair: p, done: make(chan struct{})}
	go l.fly(f)
	timer := time.NewTimer(l.budget)
	defer timer.Stop()
	select {
	case <-f.done:
	case <-timer.C:
		if f.over.CompareAndSwap(false, true) {
			l.fail(errBudget)
			report(errBudget)
			return Decision{}, false
		}
		<-f.done // it landed at this very moment
	}
	if f.err != nil {
		l.fail(f.err)
	}
	report(f.err)
	return f.decision(SourceRedis), f.err == nil
}

// depart counts a flight that Close must wait for; after Close there is none.
func (l *Limiter) depart() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.closed {
		l.flights.Add(1)
	}
	return !l.closed
}

// fly visits the buckets, what they owe included. Tokens that arrive too late
// are not spent, the request having been decided without them, but go back.
func (l *Limiter) fly(f *flight) {
	defer l.flights.Done()
	ctx, cancel := context.WithTimeout(context.Background(), flightTimeout)
	defer cancel()
	debts := l.claim(f.calls[:f.n])
	f.err = f.take(ctx, l.shared)
	l.conclude(f.calls[:f.n], debts, f.err)
	inTime := f.over.CompareAndSwap(false, true)
	close(f.done)
	if f.stray != nil {
		l.queueReturn(f.stray)
	}
	if !inTime && f.err == nil && f.allowed {
		for i := range f.calls[:f.n] {
			l.queueReturn(f.calls[i].bucket)
		}
	}
}

// debt is what a call carries for local spending.
type debt struct {
	tokens int64
	policy Policy
}

// claim loads the calls with what their buckets owe. conclude must follow.
func (l *Limiter) claim(calls []call) []debt {
	debts := make([]debt, len(calls))
	now := l.now()
	for i := range calls {
		d := &debts[i]
		d.tokens, d.policy = calls[i].bucket.claim(now)
		calls[i].debt = d.tokens
	}
	return debts
}

// conclude notes what Redis answered, or takes the debts back.
func (l *Limiter) conclude(calls []call, debts []debt, err error) {
	now := l.now()
	for i := range calls {
		b := calls[i].bucket
		if err != nil {
			b.unclaim(debts[i].tokens, debts[i].policy, now)
			continue
		}
		l.tally.settled.Add(uint64(debts[i].tokens))
		b.note(&calls[i], now)
		b.settled()
	}
}
