package edge

import (
	"math"
	"net/netip"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// guard limits failed authentication and requests that need no key, for each client
// address on this node. So a flood of either costs the node little.
//
// It never refuses a valid key. Many clients may share an address, that of a NAT or of a
// proxy that --trusted-proxies does not name.
//
// It does not bound the load of invalid keys on Postgres, which the key cache does:
// malformed keys are not looked up, the look-ups of unknown keys are limited for the
// whole node, and those of an exhausted address wait for those of other addresses. For
// that, failed look-ups have a separate bucket.
type guard struct {
	now func() time.Time

	mu        sync.Mutex // guards last and addresses
	last      time.Time  // the latest time that the limiters have seen
	addresses *lru.Cache[netip.Addr, *addressLimits]
}

// addressLimits are the buckets of an address: for missing and malformed keys, for keys
// that were looked up and refused, and for responses that need no key.
type addressLimits struct{ malformed, failed, public *rate.Limiter }

const (
	failuresPerSecond = 20
	failureBurst      = 200
	// A browser takes about 15 tokens to load /docs, and 5 if it has /docs in its cache.
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

// exhausted reports whether the address has no token left for a failed look-up.
func (g *guard) exhausted(a netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l, ok := g.addresses.Get(network(a))
	return ok && secondsToToken(l.failed, g.time()) > 0
}

// fail takes a token for a failed authentication. lookedUp says that the key was looked
// up, and was not missing or malformed. It returns 0, or the seconds until there is a
// token.
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

// limits returns the buckets of the address. The caller holds mu.
func (g *guard) limits(a netip.Addr) *addressLimits {
	a = network(a)
	l, ok := g.addresses.Get(a)
	if !ok {
		l = &addressLimits{rate.NewLimiter(failuresPerSecond, failureBurst), rate.NewLimiter(failuresPerSecond, failureBurst),
			rate.NewLimiter(publicPerSecond, publicBurst)}
		g.addresses.Add(a, l)
	}
	return l
}

// time returns the current time, but never an earlier time than before: if time went
// back, the limiters would refill tokens for the same period twice. The caller holds mu.
func (g *guard) time() time.Time {
	if now := g.now(); now.After(g.last) {
		g.last = now
	}
	return g.last
}

func secondsToToken(l *rate.Limiter, now time.Time) int64 {
	return int64(math.Ceil(max(0, 1-l.TokensAt(now)) / failuresPerSecond))
}

// network returns the network that identifies a client: an IPv4 address, or an IPv6 /64,
// because an IPv6 client may use any address of its /64.
func network(a netip.Addr) netip.Addr {
	if p, err := a.Prefix(64); err == nil && a.Is6() {
		return p.Addr()
	}
	return a.WithZone("")
}
