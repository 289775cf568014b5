package limiter

// What a lease gives back by itself: tokens that nobody comes for.

const (
	idleLeast = 100_000   // an idle lease is settled after this at the earliest,
	idleMost  = leaseLife // and a sparse key's not before it ends
)

// sweep looks at a lease now and then. want: it should fly, because it is idle
// or owes something. active: it should be looked at again.
func (l *lease) sweep(now int64) (want, active bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trim(now)
	held, owes := l.cur+l.prev > 0, l.owes(now)
	l.settled(now)
	want = owes || l.ret > 0 || held && l.idles(now)
	active = held || owes || l.ret > 0 || l.flight.under || len(l.queue) > 0
	return want && !l.flight.under, active
}

// idles reports whether nothing has happened to the lease for longer than its
// demand lets expect.
func (l *lease) idles(now int64) bool {
	return l.idle.over(now, l.word.Load(), l.refused.Load(), l.demand.patience())
}

// owing is owes, for counting.
func (l *lease) owing(now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owes(now)
}

// idleness is since when nothing has happened to a lease.
type idleness struct {
	word    uint64
	refused int64
	since   int64
}

// over looks again, and reports whether nothing has changed for patience.
func (i *idleness) over(now int64, word uint64, refused, patience int64) bool {
	if i.word != word || i.refused != refused {
		*i = idleness{word: word, refused: refused, since: now}
	}
	return now-i.since >= patience
}
