package limiter

import "math"

// books are what the bucket holds for this node, by epoch, and what it is to
// get back. lease.mu guards them; balance and spent, which add up to cur +
// prev, are in lease.word.
type books struct {
	epoch           int64 // of cur, as the bucket counts them
	cur, prev       int64 // tokens leased in it, and in the one before
	curEnd, prevEnd int64 // when they must be spent
	ret             int64 // tokens to give back that are on nobody's books
	giving          int64 // tokens on their way back
}

// strike takes n tokens off the books, the older first, and returns how many of
// each epoch. n <= cur + prev.
func (b *books) strike(n int64) (rel0, rel1 int64) {
	rel1 = min(b.prev, n)
	rel0 = n - rel1
	b.prev -= rel1
	b.cur -= rel0
	return rel0, rel1
}

// endOf is when tokens leased by c must be spent, by the clock of a node that
// sent it at sent: c's epoch and the next one end later than that in the
// bucket, which was visited after.
func endOf(c *call, sent int64) int64 {
	if c.life == 0 {
		return math.MaxInt64
	}
	return sent + c.lasts - leaseSlack
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

// keep cuts the books down to n tokens: the oldest are struck off, spent or
// not, and the oldest are spent first.
func (l *lease) keep(n int64) {
	for {
		w := l.word.Load()
		left := min(balanceOf(w), n)
		if l.word.CompareAndSwap(w, wordOf(left, n-left)) {
			return
		}
	}
}

// setUntil: the balance ends with the oldest token in it.
func (l *lease) setUntil() {
	end := l.curEnd
	if balanceOf(l.word.Load()) > l.cur {
		end = l.prevEnd
	}
	if l.closed {
		end = 0
	}
	l.until.Store(end)
}

// takeOff takes what was spent, and what goes back, off the books and puts it
// into the call. It returns what may still be spent, and how much was.
func (l *lease) takeOff(c *call, all bool) (balance, used int64) {
	for {
		w := l.word.Load()
		balance, used = balanceOf(w), spentOf(w)
		back := int64(0)
		if all {
			back = balance
		}
		if l.word.CompareAndSwap(w, wordOf(balance-back, 0)) {
			c.ret += back
			c.rel0, c.rel1 = l.strike(used + back)
			l.setUntil()
			return balance - back, used
		}
	}
}

// putBack undoes takeOff, but for what was to go back: that still goes back.
func (l *lease) putBack(c *call) {
	l.cur += c.rel0
	l.prev += c.rel1
	l.word.Add(wordOf(0, c.rel0+c.rel1))
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

// enterLeased enters what c leased, of which spent was spent alone meanwhile.
func (l *lease) enterLeased(c *call, spent, sent int64) {
	l.turn(c)
	l.cur += c.leased
	l.word.Add(wordOf(c.leased-spent, spent))
	l.curEnd = endOf(c, sent)
	l.setUntil()
}
