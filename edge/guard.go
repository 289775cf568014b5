package edge

import (
	"math"
	"net/netip"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// guard limits, by client address and in this process, failed authentication
// and what needs no key, so that a flood of either costs this node little.
//
// A key that exists is never refused for what others do, who may have the same
// address: a NAT's, or a proxy's that is not named.
// What made-up keys cost Postgres is bounded elsewhere: texts that cannot be keys
// are not looked up, and other look-ups that are in vain are limited for the
// whole node, and wait for others' where their address has used up its failures
// (apikey.Cache). So keys that were looked up in vain are counted apart from
// texts that cannot be keys.
type guard struct {
	now func() time.Time

	mu        sync.Mutex // guards the making of an offender, and time, which must not go back for its limiters
	last      time.Time
	addresses *lru.Cache[netip.Addr, *offender]
}

type offender struct{ malformed, refused, keyless *rate.Limiter }

const (
	failuresPerSecond = 20
	failureBurst      = 200
	// A browser takes about 15 tokens to load /docs, and 5 once it has cached it.
	keylessPerSecond = 20
	keylessBurst     = 400
	guardedAddresses = 65_536 // remembered at most, the oldest forgotten first
)

func newGuard() *guard {
	addresses, err := lru.New[netip.Addr, *offender](guardedAddresses)
	if err != nil {
		panic("BUG: " + err.Error()) // only for a size below 1
	}
	return &guard{now: time.Now, addresses: addresses}
}

// exhausted says whether so many keys of the address were looked up in vain that
// the next failure will be refused.
func (g *guard) exhausted(a netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.addresses.Get(network(a))
	return ok && untilToken(o.refused, g.moment()) > 0
}

// fail counts a failure, of a key that was looked up or of a text that cannot
// be one, and returns 0, or the seconds until the next is answered as such.
func (g *guard) fail(a netip.Addr, lookedUp bool) (retry int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.offender(a)
	l, now := o.malformed, g.moment()
	if lookedUp {
		l = o.refused
	}
	if l.AllowN(now, 1) {
		return 0
	}
	return max(1, untilToken(l, now))
}

// keyless takes tokens for an answer that needs no key. It returns 0, or the
// seconds until there are as many.
func (g *guard) keyless(a netip.Addr, tokens int) (retry int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.moment()
	r := g.offender(a).keyless.ReserveN(now, tokens)
	wait := r.DelayFrom(now)
	if wait == 0 {
		return 0
	}
	r.CancelAt(now)
	return int64(math.Ceil(wait.Seconds()))
}

// offender is what is known of the address, under mu.
func (g *guard) offender(a netip.Addr) *offender {
	a = network(a)
	o, ok := g.addresses.Get(a)
	if !ok {
		o = &offender{rate.NewLimiter(failuresPerSecond, failureBurst), rate.NewLimiter(failuresPerSecond, failureBurst), rate.NewLimiter(keylessPerSecond, keylessBurst)}
		g.addresses.Add(a, o)
	}
	return o
}

// moment is now, and never before what it was: the limiters credit time that
// goes back twice.
func (g *guard) moment() time.Time {
	if now := g.now(); now.After(g.last) {
		g.last = now
	}
	return g.last
}

func untilToken(l *rate.Limiter, now time.Time) int64 {
	missing := 1 - l.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	return max(1, int64(math.Ceil(missing/failuresPerSecond)))
}

// network is what one client has: an IPv4 address, or an IPv6 /64, of which it
// may use any address it likes.
func network(a netip.Addr) netip.Addr {
	if p, err := a.Prefix(64); err == nil && a.Is6() {
		return p.Addr()
	}
	return a.WithZone("")
}
