package edge

import (
	"math"
	"net/netip"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// guard limits failed authentication by client address, in this process, so
// that a flood of invalid keys costs neither Postgres nor Redis anything and
// this node little.
//
// Keys that were looked up in vain are counted apart from texts that cannot be
// keys: only the former can cost look-ups, and only they keep a key that this
// node has yet to meet from being looked up. A client whose key is known here
// and opens what it asks for never meets the guard.
type guard struct {
	now func() time.Time

	mu        sync.Mutex // guards the making of an offender, and time, which must not go back for its limiters
	last      time.Time
	addresses *lru.Cache[netip.Addr, *offender]
}

type offender struct{ malformed, refused *rate.Limiter }

const (
	failuresPerSecond = 20
	failureBurst      = 200
	guardedAddresses  = 65_536 // remembered at most, the oldest forgotten first
)

func newGuard() *guard {
	addresses, err := lru.New[netip.Addr, *offender](guardedAddresses)
	if err != nil {
		panic("BUG: " + err.Error()) // only for a size below 1
	}
	return &guard{now: time.Now, addresses: addresses}
}

// blocked returns 0 while the address may have keys looked up, else the
// seconds until it may again.
func (g *guard) blocked(a netip.Addr) (retry int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o, ok := g.addresses.Get(network(a)); ok {
		return untilToken(o.refused, g.moment())
	}
	return 0
}

// fail counts a failure, of a key that was looked up or of a text that cannot
// be one, and returns 0, or the seconds until the next is answered as such.
func (g *guard) fail(a netip.Addr, lookedUp bool) (retry int64) {
	a = network(a)
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.addresses.Get(a)
	if !ok {
		o = &offender{rate.NewLimiter(failuresPerSecond, failureBurst), rate.NewLimiter(failuresPerSecond, failureBurst)}
		g.addresses.Add(a, o)
	}
	l, now := o.malformed, g.moment()
	if lookedUp {
		l = o.refused
	}
	if l.AllowN(now, 1) {
		return 0
	}
	return max(1, untilToken(l, now))
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
