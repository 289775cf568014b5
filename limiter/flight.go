package limiter

import (
	"context"
	"sync"
	"time"
)

// flight is one request's visit to Redis, on a goroutine of its own: the
// request waits for it no longer than the budget, whatever the client's
// timeouts, dialling and pool do.
type flight struct {
	pair
	err  error
	done chan struct{} // closed when pair and err may be read

	mu    sync.Mutex // guards all below
	over  bool       // set by whoever comes first, the answer or the request giving up
	debts []debt     // on their way with this flight
}

// end is called by both sides. It reports whether the caller came first and so
// has to conclude, and what the flight carries.
func (f *flight) end() (first bool, debts []debt) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, f.over = !f.over, true
	return first, f.debts
}

// load puts the debts aboard, unless the request has given up.
func (f *flight) load(debts []debt) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.debts = debts
	return !f.over
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
		if first, debts := f.end(); first {
			l.unclaim(f.calls[:f.n], debts)
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
	calls := f.calls[:f.n]
	debts, err := l.claim(ctx, calls)
	if !f.load(debts) {
		l.unclaim(calls, debts)
		return
	}
	if f.err = err; err == nil {
		f.err = f.take(ctx, l.shared)
	}
	inTime, _ := f.end()
	switch {
	case f.err != nil && inTime:
		l.unclaim(calls, debts)
	case f.err == nil:
		l.conclude(calls, debts, inTime)
	}
	close(f.done)
	if f.stray != nil {
		l.queueReturn(f.stray)
	}
	if !inTime && f.err == nil && f.allowed {
		for i := range calls {
			l.queueReturn(calls[i].bucket)
		}
	}
}

// claim loads the calls with what their buckets owe, and waits where another
// visit carries a debt: keys come before workspaces in every flight, so no two
// wait for each other. conclude or unclaim must follow, on an error too.
func (l *Limiter) claim(ctx context.Context, calls []call) ([]debt, error) {
	debts := make([]debt, len(calls))
	for i := range calls {
		for {
			d, busy := calls[i].bucket.claim(l.now())
			if busy == nil {
				debts[i], calls[i].debt = d, d.tokens
				break
			}
			select {
			case <-busy:
			case <-ctx.Done():
				return debts, ctx.Err()
			}
		}
	}
	return debts, nil
}

// conclude notes what Redis answered. Not in time: the debts had been taken back.
func (l *Limiter) conclude(calls []call, debts []debt, inTime bool) {
	now := l.now()
	for i := range calls {
		b := calls[i].bucket
		b.note(&calls[i], now)
		l.tally.settled.Add(uint64(debts[i].tokens))
		if inTime {
			b.settled(debts[i])
		} else {
			b.settledLate(debts[i], now)
		}
	}
}

// unclaim takes the debts back: nobody knows whether they arrived.
func (l *Limiter) unclaim(calls []call, debts []debt) {
	now := l.now()
	for i, d := range debts {
		if d.tokens > 0 {
			calls[i].bucket.unclaim(d, now)
			l.owe(calls[i].bucket)
		}
	}
}
