package limiter

import (
	"math"
	"sync"
	"sync/atomic"
)

// The times of a lease, in microseconds.
const (
	// leaseLife is the length of an epoch: a lease counts as held in the shared
	// bucket for one to two of them, even if its node is gone.
	leaseLife = 10_000_000

	// leaseSlack is how long before that its node stops spending it: the budget
	// of a request that holds a token while it waits for another, and a clock
	// that runs a hundredth slower than Redis'.
	leaseSlack = 200_000

	// leaseEbb: tokens that are not spent this long before their end go back.
	leaseEbb = 1_000_000

	// Refusing only to the next token would cost a trip per token in a flood.
	denyLeast, denyMost = 10_000, 100_000

	prefetchAhead = 2_000 // how soon a lease is empty when the next is asked for

	idleLeast, idleMost = 100_000, 5_000_000 // unused this long, a lease is settled

	crowdAfter = 250_000 // spent tokens that keep a bucket from filling up go off the books

	mostAsked = 1 << 30 // tokens; balance and spent share a word
)

// verdict is what a lease says to a request.
type verdict uint8

const (
	empty  verdict = iota // the shared bucket must be asked
	spent                 // admitted
	denied                // there is known to be no token yet
)

// lease is what a node holds of one bucket and knows of the rest: a state
// machine without I/O or clock. Time (microseconds of the node, never back) and
// the bucket's answers are passed in, by the dispatcher and by the simulation.
//
//	spend ── balance ──────────────────────────────> admitted (no lock)
//	  └─ empty ── join ── depart ══ bucket ══ land ─> admitted, refused, denied until
//	                        ║                  late ─> goes back, unspent
//	                        ╚═ lose, abort ────────> alone (local bucket, a debt)
//
// Invariants, under mu, once trimmed:
//
//	balance + spent == cur + prev                 the books
//	cur, prev <= what the bucket holds for this node, of those epochs
//	every token of the balance is dropped before its epoch ages out
//	at most one flight is under way, an overdue one included
type lease struct {
	// word is balance<<32 | spent, tokens: what may be spent, and what was
	// since the last flight took it off the books.
	word    atomic.Uint64
	until   atomic.Int64 // the balance may be spent before
	deny    atomic.Int64 // before this time there is no token
	low     atomic.Int64 // a balance below it starts a prefetch
	refused atomic.Int64 // requests, ever
	ill     atomic.Int64 // before this time the node decides alone: see lose and convalesce
	wanted  atomic.Bool  // on its way to the dispatcher, or in flight
	view    view

	mu sync.Mutex // guards all below; never held during I/O

	life   int64  // of an epoch; 0 in process
	policy Policy // that the books are kept in; another one waits until they are closed

	epoch           int64 // of cur, as the bucket counts them
	cur, prev       int64 // tokens on the bucket's books for this node
	curEnd, prevEnd int64 // when they must be spent
	ret             int64 // tokens to give back that are on nobody's books
	patience        int64 // how long an empty bucket is left alone
	demand          demand
	counted         int64 // refused requests that demand has been told of
	idle            idleness

	queue   []*waiter
	aboard  int // the first of them, whose answer is on its way
	flying  bool
	closing bool  // the flight under way closes the books by an old policy
	overdue bool  // a flight was given up whose answer may yet come
	flown   int64 // when the last flight departed

	local *local // not nil while tokens were spent here that the bucket knows nothing of
}

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

func balanceOf(word uint64) int64 { return int64(word >> 32) }
func spentOf(word uint64) int64   { return int64(word & math.MaxUint32) }
func wordOf(balance, spent int64) uint64 {
	return uint64(balance)<<32 | uint64(spent)
}

// spend is the fast path: no lock, no allocation. prefetch says that the next
// lease should be asked for by now.
func (l *lease) spend(now int64) (v verdict, prefetch bool) {
	for now < l.until.Load() {
		w := l.word.Load()
		left := balanceOf(w) - 1
		if left < 0 {
			break
		}
		if l.word.CompareAndSwap(w, wordOf(left, spentOf(w)+1)) {
			return spent, left < l.low.Load() && !l.wanted.Load() && now >= l.deny.Load()
		}
	}
	if now < l.deny.Load() {
		l.refused.Add(1)
		return denied, false
	}
	return empty, false
}

// unspend takes a token back into the lease, and reports whether it did: only
// as long as a spent one is still on the books. (Which one does not matter.)
func (l *lease) unspend(now int64) bool {
	for now < l.until.Load() {
		w := l.word.Load()
		if spentOf(w) == 0 {
			return false
		}
		if l.word.CompareAndSwap(w, wordOf(balanceOf(w)+1, spentOf(w)-1)) {
			return true
		}
	}
	return false
}

// refund takes one token back. travels: the bucket must hear of it, with the
// next call; urgent: it is a small one, where others wait for every token.
// alone: it is a token of the local bucket, and goes back there.
func (l *lease) refund(now int64, alone bool) (travels, urgent bool) {
	if !alone && l.unspend(now) {
		return false, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.local != nil && l.local.unspend(now) {
		return false, false
	}
	l.ret++
	l.deny.Store(0)
	return true, l.policy.Burst < leastLeased
}

// trim drops what may be spent no longer. Call with mu held, as all below.
func (l *lease) trim(now int64) {
	if l.prev > 0 && now >= l.prevEnd {
		l.keep(l.cur)
		l.prev = 0
	}
	if l.cur > 0 && now >= l.curEnd {
		l.keep(0)
		l.cur = 0
	}
	l.setUntil()
}

// keep cuts the books down to books tokens: the oldest are struck off, spent or
// not, and the oldest are spent first.
func (l *lease) keep(books int64) {
	for {
		w := l.word.Load()
		left := min(balanceOf(w), books)
		if l.word.CompareAndSwap(w, wordOf(left, books-left)) {
			return
		}
	}
}

func (l *lease) setUntil() {
	end := l.curEnd
	if balanceOf(l.word.Load()) > l.cur {
		end = l.prevEnd
	}
	l.until.Store(end)
}

// enter tries once more, and where there is nothing, queues w.
func (l *lease) enter(w *waiter, p Policy, now int64) verdict {
	v := l.retry(p, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	if v == empty {
		w.lease, w.fate = l, waiting
		l.queue = append(l.queue, w)
	}
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

// answer ends the wait of the first n of the queue.
func (l *lease) answer(n int, f fate) {
	for _, w := range l.queue[:n] {
		w.fate = f
		w.done <- struct{}{}
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
}

// depart makes the call of the next flight, or reports that there is no need of
// one. mine are tokens wanted beyond the queue's; all gives everything back.
// Every flight ends in one land, lose or abort.
func (l *lease) depart(c *call, p Policy, now, mine int64, all bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying || l.overdue {
		return false
	}
	l.trim(now)
	l.settled(now)
	if l.policy != p && l.cur+l.prev+l.ret == 0 && l.local == nil {
		l.changePolicy(p, now)
	}
	*c = call{key: c.key, policy: l.policy, life: l.life, from: l.epoch, ret: l.ret}
	if l.closing = l.policy != p; l.closing { // and the new one counts from the next flight on
		all = true
	} else {
		c.need = int64(len(l.queue)) + mine
	}
	all = all || c.need == 0 && l.idle.over(now, l.word.Load(), l.refused.Load(), l.demand.patience(l.policy))

	balance, used := l.takeOff(c, now, all)
	refused := l.refused.Load()
	l.demand.note(now, used+c.need+refused-l.counted, l.policy)
	l.counted = refused
	if !all && l.policy.Burst >= leastLeased && now >= l.ill.Load() {
		c.extra = min(mostAsked, max(0, l.demand.window()-c.need-balance))
		c.spare = min(mostAsked, l.demand.life(l.policy, l.life))
	}
	c.debt = l.claim(now)
	if l.policy.r == 0 || c.need+c.extra+c.spare+c.rel0+c.rel1+c.ret+c.debt == 0 {
		return false
	}
	l.flown = now
	l.ret, l.flying, l.aboard = 0, true, int(max(0, c.need-mine))
	return true
}

// takeOff takes what was spent, and what goes back, off the books and puts it
// into the call. It returns what may still be spent, and how much was.
func (l *lease) takeOff(c *call, now int64, all bool) (balance, used int64) {
	for {
		w := l.word.Load()
		back := int64(0)
		balance, used = balanceOf(w), spentOf(w)
		switch {
		case all || l.cur > 0 && l.curEnd-now < leaseEbb:
			back = balance
		case l.prev > 0 && l.prevEnd-now < leaseEbb:
			back = max(0, balance-l.cur)
		}
		if l.word.CompareAndSwap(w, wordOf(balance-back, 0)) {
			balance -= back
			c.ret += back
			c.rel1 = min(l.prev, used+back)
			c.rel0 = used + back - c.rel1
			l.prev -= c.rel1
			l.cur -= c.rel0
			l.setUntil()
			return balance, used
		}
	}
}

// land takes the bucket's answer to a call that was sent at sent. mine of what
// was granted the caller keeps. again: another flight is wanted.
func (l *lease) land(c *call, sent, now, mine int64) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying = false
	l.trim(now)
	l.turn(c)
	if c.leased > 0 {
		l.cur += c.leased
		l.word.Add(wordOf(c.leased, 0))
	}
	l.curEnd = endOf(c, sent)
	l.setUntil()
	l.see(c, now)
	if c.debt > 0 || l.local != nil {
		l.settled(now)
	}

	granted := c.granted - mine
	first := min(granted, int64(l.aboard)) // fewer than granted: the others have left
	l.ret += granted - first
	l.setDeny(c, now)
	rejects := l.aboard - int(first)
	l.answer(int(first), given)
	l.answer(rejects, rejected)
	l.aboard = 0
	for len(l.queue) > 0 {
		switch v, _ := l.spend(now); v {
		case spent:
			l.answer(1, given)
			continue
		case denied:
			l.answer(1, rejected)
			continue
		}
		break
	}
	l.low.Store(l.demand.ahead(l.policy))
	return len(l.queue) > 0 || l.ret > 0 && l.policy.Burst < leastLeased
}

// turn follows the bucket into another epoch. A bucket that jumps is another
// one, or has forgotten what was leased longer ago: the books are dropped.
func (l *lease) turn(c *call) {
	switch {
	case c.epoch == l.epoch:
		return
	case c.epoch == l.epoch+1:
		l.keep(l.cur)
		l.prev, l.prevEnd, l.cur = l.cur, l.curEnd, 0
	default:
		l.keep(0)
		l.prev, l.cur = 0, 0
	}
	l.epoch = c.epoch
}

// endOf is when tokens leased by c must be spent: its epoch and the next one
// end then in the bucket, counted from the sending, which was before.
func endOf(c *call, sent int64) int64 {
	if c.life == 0 {
		return math.MaxInt64
	}
	return sent + c.lasts - leaseSlack
}

// setDeny leaves an empty bucket alone: until its next token, and where visits
// bring little, until there are some.
func (l *lease) setDeny(c *call, now int64) {
	l.deny.Store(0)
	if l.closing || l.ret > 0 || c.level >= c.p && c.granted == c.need {
		return
	}
	wait := max(1, c.wait)
	if c.level < c.p && l.life > 0 && l.policy.Burst >= leastLeased {
		switch yield := c.granted + c.leased; {
		case yield < 32:
			l.patience = min(denyMost, max(denyLeast, 2*l.patience))
		case yield > 128:
			l.patience = max(denyLeast, l.patience/2)
		}
		wait = max(wait, min(l.patience, windowOf(l.policy)))
	}
	l.deny.Store(now + wait)
}

// see remembers how the bucket stands; now is later than its own time of the
// answer, and so shows less than has come since.
func (l *lease) see(c *call, now int64) {
	level := c.level
	if c.p != l.policy.p { // counted in units of a policy not known here
		level = c.remaining() * l.policy.p
	}
	most := max(0, l.policy.Burst-c.held) * l.policy.p
	l.view.set(min(level, l.policy.units()), most, now)
}

// changePolicy puts p in force once nothing is left on the books. What was seen
// keeps its filled share.
func (l *lease) changePolicy(p Policy, now int64) {
	if l.policy.r > 0 && p.r > 0 && l.view.known() {
		s := state{level: l.view.levelNow(l.policy, now), policy: l.policy}
		s.rescale(p)
		l.view.set(s.level, p.units(), now)
	}
	l.policy, l.demand = p, demand{at: now}
	l.deny.Store(0)
	l.low.Store(0)
}

// lose ends a flight of which nothing is known. What it carried is gone: to
// send it again might count it twice. Where its answer may yet come, this node
// decides alone until then: a debt that overtook the flight would find a bucket
// that is emptier than it should be. It returns the tokens that were to go back.
func (l *lease) lose(c *call, now, nodes int64, overdue bool) (dropped int64, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying = false
	l.unclaim(c.debt, now, nodes)
	aboard := l.aboard
	l.aboard = 0
	if l.overdue = overdue; overdue {
		l.ill.Store(math.MaxInt64)
		aboard = len(l.queue)
	}
	l.answer(aboard, missed)
	return c.ret, len(l.queue) > 0
}

// vain ends the wait for an answer that was overdue.
func (l *lease) vain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.overdue = false
	l.ill.Store(0)
}

// abort ends a flight that was not carried out: all is as it was before.
func (l *lease) abort(c *call, now, nodes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying, l.aboard = false, 0
	l.unclaim(c.debt, now, nodes)
	l.ret += c.ret
	l.cur += c.rel0
	l.prev += c.rel1
	l.word.Add(wordOf(0, c.rel0+c.rel1)) // what was to go back is spent, and still goes back
	l.trim(now)
}

// late takes the answer to a flight that was given up: its tokens are never
// spent. They pay for those that were spent here instead, or go back.
func (l *lease) late(c *call, sent, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.overdue = false
	l.ill.Store(0)
	l.trim(now)
	end := endOf(c, sent)
	l.turn(c)
	l.curEnd = end
	l.cur += c.leased
	l.word.Add(wordOf(0, c.leased))
	l.setUntil()
	l.settledLate(c.debt, now)
	l.ret += c.leased + c.granted - l.payWith(c.granted, now)
	l.deny.Store(0)
	l.see(c, now)
}

// forsake answers everyone who waits for a bucket that cannot be asked.
func (l *lease) forsake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.flying {
		l.answer(len(l.queue), missed)
	}
}

// waits reports whether anybody does, for whom a flight can be begun. While an
// answer is overdue none can: whoever came in between is told to do without.
func (l *lease) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overdue {
		l.answer(len(l.queue), missed)
	}
	return !l.flying && len(l.queue) > 0
}

// owing is owes, for counting.
func (l *lease) owing(now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owes(now)
}

// shut has the next request of a changed policy ask the bucket.
func (l *lease) shut() {
	l.until.Store(0)
	l.deny.Store(0)
}

// retry looks for a token once more, the old ones thrown away.
func (l *lease) retry(p Policy, now int64) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trim(now)
	if l.policy != p {
		l.shut()
		return empty
	}
	v, _ := l.spend(now)
	return v
}

// sweep looks at a lease now and then. want: it should fly, because it is idle,
// ebbs, or owes something. active: it should be looked at again.
func (l *lease) sweep(now int64) (want, active bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trim(now)
	word := l.word.Load()
	books := l.cur + l.prev
	ebbing := books > 0 && balanceOf(word) > 0 && l.until.Load()-now < leaseEbb
	owes := l.owes(now)
	l.settled(now)
	idle := books > 0 && l.idle.over(now, word, l.refused.Load(), l.demand.patience(l.policy))
	want = !l.flying && !l.overdue && (ebbing || owes || idle || l.ret > 0 || l.crowds(now, word))
	return want, books > 0 || l.ret > 0 || owes || l.flying || l.overdue || len(l.queue) > 0 || l.local != nil
}

// crowds reports whether spent tokens that the bucket still counts keep it from
// filling up. (A busy lease flies often enough.)
func (l *lease) crowds(now int64, word uint64) bool {
	if 64*spentOf(word) < l.policy.Burst || now-l.flown < crowdAfter || l.life == 0 {
		return false
	}
	level, most, at := l.view.get()
	return most < l.policy.units() && grown(level, most, now-at, l.policy.r) >= most
}

// holds is the balance, for counting.
func (l *lease) holds(now int64) int64 {
	if now >= l.until.Load() {
		return 0
	}
	return balanceOf(l.word.Load())
}
