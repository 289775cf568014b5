package edge

import (
	"math"
	"net/netip"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// guard limits failed authentication, and what needs no key, by client address
// and in this process, so that a flood of either costs this node little.
//
// It never refuses a valid key for what others do from the same address: a NAT's,
// or a proxy's that --trusted-proxies does not name. What invalid keys cost
// Postgres is bounded elsewhere: malformed ones are not looked up, and other
// failed look-ups are limited for the whole node, and queue behind those of other
// addresses once their address is exhausted (the key cache). So failed look-ups
// have a bucket of their own.
type guard struct {
	now func() time.Time

	mu        sync.Mutex // guards addresses, and last, because time must not go back for the limiters
	last      time.Time
	addresses *lru.Cache[netip.Addr, *addressLimits]
}

type addressLimits struct{ malformed, failed, public *rate.Limiter }

const (
	failuresPerSecond = 20
	failureBurst      = 200
	// A browser takes about 15 tokens to load /docs, and 5 once it has cached it.
	publicPerSecond  = 20
	publicBurst      = 400
	guardedAddresses = 65_536 // the least recently used is evicted
)

func newGuard() *guard {
	addresses, err := lru.New[netip.Addr, *addressLimits](guardedAddresses)
	if err != nil {
		panic("BUG: " + err.Error()) // only for a size below 1
	}
	return &guard{now: time.Now, addresses: addresses}
}

// exhausted says whether so many look-ups of keys from the address have failed
// that the next failure will be refused.
func (g *guard) exhausted(a netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l, ok := g.addresses.Get(network(a))
	return ok && secondsToToken(l.failed, g.time()) > 0
}

// fail takes a token for a failed authentication, of a key that was looked up or
// of a malformed one. It returns 0, or the seconds until there is a token.
func (g *guard) fail(a netip.Addr, lookedUp bool) (retry int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	limits := g.limits(a)
	l, now := limits.malformed, g.time()
	if lookedUp {
		l = limits.failed
	}
	if l.AllowN(now, 1) {
		return 0
	}
	return max(1, secondsToToken(l, now))
}

// public takes tokens for a response that needs no key. It returns 0, or the
// seconds until there are as many.
func (g *guard) public(a netip.Addr, tokens int) (retry int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.time()
	r := g.limits(a).public.ReserveN(now, tokens)
	wait := r.DelayFrom(now)
	if wait == 0 {
		return 0
	}
	r.CancelAt(now)
	return int64(math.Ceil(wait.Seconds()))
}

// limits are those of the address. The caller holds mu.
func (g *guard) limits(a netip.Addr) *addressLimits {
	a = network(a)
	l, ok := g.addresses.Get(a)
	if !ok {
		l = &addressLimits{rate.NewLimiter(failuresPerSecond, failureBurst), rate.NewLimiter(failuresPerSecond, failureBurst), rate.NewLimiter(publicPerSecond, publicBurst)}
		g.addresses.Add(a, l)
	}
	return l
}

// time is now, and never before what it was: the limiters credit time that goes
// back twice. The caller holds mu.
func (g *guard) time() time.Time {
	if now := g.now(); now.After(g.last) {
		g.last = now
	}
	return g.last
}

func secondsToToken(l *rate.Limiter, now time.Time) int64 {
	return int64(math.Ceil(max(0, 1-l.TokensAt(now)) / failuresPerSecond))
}

// network is what one client has: an IPv4 address, or an IPv6 /64, of which it
// may use any address.
func network(a netip.Addr) netip.Addr {
	if p, err := a.Prefix(64); err == nil && a.Is6() {
		return p.Addr()
	}
	return a.WithZone("")
}
