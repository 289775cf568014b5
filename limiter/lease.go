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

	// leaseSlack is how long before that its node stops spending it. It covers
	// a clock that runs a hundredth slower than Redis', the budget of a request
	// that holds a token while it waits for another, and a moment read a while
	// before it is acted upon (see TakeAt).
	leaseSlack = 400_000
)

// mostAsked bounds what is leased at once, in tokens: balance and spent share a word.
const mostAsked = 1 << 30

// verdict is what a lease says to a request.
type verdict uint8

const (
	empty  verdict = iota // the shared bucket must be asked
	spent                 // admitted
	denied                // there is known to be no token yet
)

// lease is what a node holds of one bucket and knows of the rest: a state
// machine without I/O or clock. Time (microseconds of the node) and the
// bucket's answers are passed in, by the dispatcher and by the simulation.
//
//	spend ── balance ───────────────────────────────> admitted (no lock)
//	  ├─ deny ──────────────────────────────────────> refused  (no lock)
//	  └─ empty ── enter ── depart ══ bucket ══ land ─> admitted, refused, denied until
//	                         ╚═ lose, abort ─────────> alone (local bucket, a debt)
//
//	books.go    what is held, and until when       queue.go  who waits
//	flight.go   a call to the bucket and its end   deny.go   how long an empty bucket is left alone
//	demand.go   how much to ask for                sweep.go  what goes back by itself
//	alone.go    while the bucket cannot be asked
//
// Invariants, under mu, once trimmed:
//
//	balance + spent == cur + prev                 the books
//	cur, prev <= what the bucket holds for this node, of those epochs
//	every token of the balance is dropped before its epoch ages out
//	at most one flight is under way
type lease struct {
	// word is balance<<32 | spent, tokens: what may be spent, and what was
	// since the last flight took it off the books.
	word    atomic.Uint64
	until   atomic.Int64  // the balance may be spent before
	deny    atomic.Int64  // before this time there is no token
	busy    atomic.Bool   // so many requests that not each is shown its own level
	wanted  atomic.Bool   // on its way to the dispatcher, or in flight
	low     atomic.Int64  // a balance below it starts a prefetch
	seen    atomic.Uint32 // how often view was renewed
	refused atomic.Int64  // requests, ever
	ill     atomic.Int64  // before this time the node decides alone: see convalesce

	mu sync.Mutex // guards all below; never held during I/O

	life   int64      // of an epoch; 0 in process
	link   *roundTrip // to the bucket; nil in process
	policy Policy     // that the books are kept in; another one waits until they are closed
	closed bool       // another one waits

	books
	view     view
	patience int64 // how long an empty bucket is left alone
	demand   demand
	counted  int64 // refused requests that demand has been told of
	idle     idleness

	queue  []*waiter
	aboard int // the first of them, whose answer is on its way

	flight flight

	local *local // not nil while tokens were spent here that the bucket knows nothing of
}

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

// denies reports whether spend would refuse, and spends nothing.
func (l *lease) denies(now int64) bool { return now < l.deny.Load() && l.holds(now) == 0 }

// holds is the balance, as far as it may be spent.
func (l *lease) holds(now int64) int64 {
	if now >= l.until.Load() {
		return 0
	}
	return balanceOf(l.word.Load())
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

// shut has the next request of a changed policy ask the bucket: what is held
// under the old one is spent no more.
func (l *lease) shut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.setUntil()
	l.deny.Store(0)
}

// follow puts p in force, or reports that the books of another policy must be
// closed first: tokens of two policies are never on them at once.
func (l *lease) follow(p Policy, now int64) (closing bool) {
	if l.policy != p && l.cur+l.prev+l.ret == 0 && !l.owes(now) {
		l.view.rescale(l.policy, p, now)
		l.policy, l.demand = p, demand{at: now}
		l.deny.Store(0)
		l.low.Store(0)
		l.seen.Add(1)
	}
	l.closed = l.policy != p
	return l.closed
}
