package lease

// ledger is what the bucket holds for this node, by epoch.
//
// Invariants, once trimmed: 0 <= balance <= cur + prev; cur and prev are at most
// what the bucket holds for this node, of those epochs; a token of the balance is
// dropped before its epoch ages out in the bucket.
type ledger struct {
	epoch     int32 // of cur, as the bucket counts them
	cur, prev int32 // tokens leased in it, and in the one before, spent ones included
	balance   int32 // those that may still be spent; the oldest are spent first
	end       int64 // when those of cur must be spent; those of prev an Epoch before
}

// leaseSlack is how long before a lease ages in the bucket its node stops
// spending it. It covers a clock that runs a hundredth slower than Redis', the
// wait of a request that holds one token while it waits for another, and a moment
// read a while before it is acted upon (see Limiter.Take).
const leaseSlack = 400_000

// trim drops what may be spent no longer.
func (g *ledger) trim(now int64) {
	if g.prev > 0 && now >= g.end-Epoch {
		g.prev, g.balance = 0, min(g.balance, g.cur)
	}
	if g.cur > 0 && now >= g.end {
		g.cur, g.balance = 0, 0
	}
}

// enter adds tokens that were leased by a call sent at sent: their epoch and the
// next one end later than that in the bucket, which was visited after. A bucket
// that jumps to another epoch is another one, or has forgotten what was leased
// longer ago: the ledger is dropped.
func (g *ledger) enter(tokens int64, r *Reply, sent int64) {
	switch epoch := int32(r.Epoch); epoch {
	case g.epoch:
	case g.epoch + 1:
		g.prev, g.cur, g.balance = g.cur, 0, min(g.balance, g.cur)
	default:
		g.cur, g.prev, g.balance = 0, 0, 0
	}
	g.epoch = int32(r.Epoch)
	g.cur += int32(tokens)
	g.balance += int32(tokens)
	g.end = sent + r.Lasts - leaseSlack
}

// settle strikes off what was spent, and with all the balance as well, into the
// call that reports it.
func (g *ledger) settle(c *Call, all bool) {
	used := g.cur + g.prev - g.balance
	if all {
		c.Ret += int64(g.balance)
		used += g.balance
		g.balance = 0
	}
	rel1 := min(g.prev, used)
	g.prev -= rel1
	g.cur -= used - rel1
	c.Epoch, c.Rel0, c.Rel1 = int64(g.epoch), int64(used-rel1), int64(rel1)
}
