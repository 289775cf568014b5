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
// this node little. Clients whose key is known here never meet it.
type guard struct {
	mu        sync.Mutex // guards the making of a limiter for a new address
	addresses *lru.Cache[netip.Addr, *rate.Limiter]
}

const (
	failuresPerSecond = 20
	failureBurst      = 200
	guardedAddresses  = 65_536 // remembered at most, the oldest forgotten first
)

func newGuard() *guard {
	addresses, err := lru.New[netip.Addr, *rate.Limiter](guardedAddresses)
	if err != nil {
		panic("BUG: " + err.Error()) // only for a size below 1
	}
	return &guard{addresses: addresses}
}

// blocked returns 0 while the address has failures left, without spending
// one, else the seconds until it has one again.
func (g *guard) blocked(a netip.Addr, now time.Time) (retry int64) {
	if l, ok := g.addresses.Get(network(a)); ok {
		return untilToken(l, now)
	}
	return 0
}

// fail spends one and returns 0, or the seconds until there is one to spend.
func (g *guard) fail(a netip.Addr, now time.Time) (retry int64) {
	a = network(a)
	g.mu.Lock()
	l, ok := g.addresses.Get(a)
	if !ok {
		l = rate.NewLimiter(failuresPerSecond, failureBurst)
		g.addresses.Add(a, l)
	}
	g.mu.Unlock()
	if l.AllowN(now, 1) {
		return 0
	}
	return max(1, untilToken(l, now))
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
