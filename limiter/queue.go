package limiter

// waiter is a request's place in the queue of a lease, which guards it.
type waiter struct {
	lease *lease
	done  chan struct{} // of its request; room for all its waiters
	fate  fate
}

type fate uint8

const (
	waiting  fate = iota
	given         // a token
	rejected      // none, until deny
	missed        // no answer: decide alone
)

// enter tries once more, the old tokens thrown away, and where there is
// nothing, queues w: unless an answer has taken longer than anybody waits.
func (l *lease) enter(w *waiter, p Policy, now int64) (v verdict, queued bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v = l.again(p, now); v != empty {
		return v, false
	}
	if l.flight.under && now-l.flight.at >= l.link.wait() {
		l.refused.Add(1) // it is demand all the same
		return v, false
	}
	w.lease, w.fate = l, waiting
	l.queue = append(l.queue, w)
	return v, true
}

// retry is enter for who does not wait.
func (l *lease) retry(p Policy, now int64) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.again(p, now)
}

// again looks for a token of policy p. Call with mu held.
func (l *lease) again(p Policy, now int64) verdict {
	l.closed = l.policy != p
	l.trim(now)
	if l.closed {
		return empty
	}
	v, _ := l.spend(now)
	return v
}

// leave ends w's wait and returns its fate: waiting where nobody has decided.
func (l *lease) leave(w *waiter) fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.fate == waiting {
		for i, q := range l.queue {
			if q == w {
				l.queue = append(l.queue[:i], l.queue[i+1:]...)
				if i < l.aboard {
					l.aboard--
				}
				break
			}
		}
	}
	return w.fate
}

// answer ends the wait of the first n of the queue. Call with mu held.
func (l *lease) answer(n int, f fate) {
	for _, w := range l.queue[:n] {
		w.fate = f
		w.done <- struct{}{}
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
}

// serve answers those who queued while the flight was under way, as far as its
// tokens, or its word that there are none, go. Call with mu held.
func (l *lease) serve(now int64) {
	for len(l.queue) > 0 {
		switch v, _ := l.spend(now); v {
		case spent:
			l.answer(1, given)
		case denied:
			l.answer(1, rejected)
		default:
			return
		}
	}
}

// forsake answers everyone who waits for a bucket that cannot be asked.
func (l *lease) forsake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.flight.under {
		l.answer(len(l.queue), missed)
	}
}

// waits reports whether anybody does, for whom a flight can be begun.
func (l *lease) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.flight.under && len(l.queue) > 0
}
