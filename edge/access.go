package edge

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"listedge/limiter"
	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// client is what a node makes of an API key once, for all its requests: its buckets, and
// the part of the limit headers that does not change.
type client struct {
	bucket          *limiter.Bucket
	workspaceBucket *limiter.Bucket // nil = none
	limit           int64           // tokens that a full bucket of the key has
	workspaceLimit  int64
	policy          unique.Handle[string] // RateLimit-Policy without the quota; one text for all keys with these limits
	quota           *quota                // of the workspace; nil = none
	usage           *usage.Counter
}

// policyOf returns the policy of a limit. A limit that the columns' constraints forbid has the
// zero policy, which admits nothing.
func policyOf(l apikey.Limit) limiter.Policy {
	p, _ := limiter.NewPolicy(l.Rate, l.Burst)
	p.Version = l.Version
	return p
}

// quota is how many requests a workspace may make in a day or month; each has its own count.
type quota struct {
	apikey.Quota
	limiter   *limiter.Limiter
	workspace string
	current   atomic.Pointer[period]
}

// period is one day or month of a workspace's quota, with the count of its requests.
type period struct {
	count      *limiter.Counter
	begin, end time.Time
	policy     string // its item of RateLimit-Policy
}

// at returns the quota's period in which now is, by the node's clock. It allocates once in a
// period. Requests of the old period that are still being decided keep its count.
func (q *quota) at(now time.Time) *period {
	if p := q.current.Load(); p != nil && !now.Before(p.begin) && now.Before(p.end) {
		return p
	}
	name, begin, end := q.Period.Bounds(now)
	var item header
	item.item("quota", "q", q.Requests)
	item.put(";w=")
	item.putNum(int64(end.Sub(begin) / time.Second))
	p := &period{q.limiter.Quota(q.workspace, name, q.Requests, end), begin, end, string(item)}
	q.current.Store(p)
	return p
}

// guard limits failed authentication and requests that need no key, for each client
// address on this node. So a flood of either costs the node little.
//
// It never refuses a valid key. Many clients may share an address, that of a NAT or of a
// proxy that --trusted-proxies does not name.
//
// It does not bound the load of invalid keys on Postgres, which the key cache does:
// malformed keys are not looked up, the look-ups of unknown keys are limited for the
// whole node, and those of an exhausted address wait for those of other addresses. For
// that, refused keys have a separate bucket.
type guard struct {
	now func() time.Time

	mu        sync.Mutex // guards addresses and their buckets, whose time must not go back
	addresses *lru.Cache[netip.Addr, *addressBuckets]
}

// addressBucket names one of the token buckets that each client address has.
type addressBucket uint8

const (
	malformedKeys   addressBucket = iota // keys that are missing or malformed
	refusedKeys                          // keys that were looked up and refused
	publicResponses                      // responses that need no key
	bucketsOfAddress
)

// addressBuckets are what the guard knows of an address.
type addressBuckets struct {
	tokens  [bucketsOfAddress]*rate.Limiter
	pending int // look-ups of its keys that have not ended: each may take one of the tokens of refusedKeys
}

const (
	addressRate      = 20 // tokens per second of each bucket
	failureBurst     = 200
	publicBurst      = 400    // a browser takes about 15 tokens to load /docs, and 5 if it has /docs in its cache
	guardedAddresses = 65_536 // the least recently used is evicted
)

func newGuard() *guard {
	return &guard{now: time.Now, addresses: must(lru.New[netip.Addr, *addressBuckets](guardedAddresses))}
}

// beginLookup notes that a key of the address is looked up, until endLookup is called with what it returns. suspect says
// whether the address has no token left for it, should it be refused: a slow Postgres lets nobody look up more at once.
func (g *guard) beginLookup(a netip.Addr) (of *addressBuckets, suspect bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of = g.buckets(a)
	suspect = of.tokens[refusedKeys].TokensAt(g.now()) < float64(of.pending+1)
	of.pending++
	return of, suspect
}

func (g *guard) endLookup(of *addressBuckets) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of.pending--
}

// take takes tokens from a bucket of the address, and returns 0. If there are too few, it
// takes none, and returns the seconds until there are enough.
func (g *guard) take(a netip.Addr, b addressBucket, tokens int) (retry int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	r := g.buckets(a).tokens[b].ReserveN(now, tokens)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return int64(math.Ceil(wait.Seconds()))
}

// buckets returns what is known of the address. mu is locked.
func (g *guard) buckets(a netip.Addr) *addressBuckets {
	a = network(a)
	known, ok := g.addresses.Get(a)
	if !ok {
		known = &addressBuckets{tokens: [...]*rate.Limiter{rate.NewLimiter(addressRate, failureBurst), rate.NewLimiter(addressRate, failureBurst),
			rate.NewLimiter(addressRate, publicBurst)}}
		g.addresses.Add(a, known)
	}
	return known
}

// network returns the network that identifies a client: an IPv4 address, or an IPv6 /64,
// because an IPv6 client may use any address of its /64.
func network(a netip.Addr) netip.Addr {
	if p, err := a.Prefix(64); err == nil && a.Is6() {
		return p.Addr()
	}
	return a.WithZone("")
}

// limit takes tokens from a bucket of the client's address. It returns p as a failure
// if there are too few, else nil.
func (g *guard) limit(x *exchange, b addressBucket, tokens int, p *problem) *failure {
	if retry := g.take(x.server.clientAddress(x), b, tokens); retry > 0 {
		return &failure{problem: p, retry: retry}
	}
	return nil
}

// proxies are the trusted proxies, with a note about one that seems to be missing among them, or to be wrong there.
type proxies struct {
	networks []netip.Prefix
	noted    atomic.Pointer[forwarder] // nil = none
}

// clientAddress returns the connection's peer. If the peer is a trusted proxy, it returns
// the last address in X-Forwarded-For that is not a trusted proxy; if an entry behind that is
// no address, the proxy that sent it.
func (p *proxies) clientAddress(x *exchange) netip.Addr {
	peer := x.conn.peer()
	if !p.trusted(peer) {
		return peer
	}
	for _, line := range slices.Backward(x.headers.forwarded) {
		for end := len(line); end > 0; {
			comma := bytes.LastIndexByte(line[:end], ',') // -1 = before the first address
			entry := bytes.TrimSpace(line[comma+1 : end])
			end = comma
			if len(entry) == 0 { // RFC 9110, 5.6.1: it is ignored
				continue
			}
			address, ok := parseForwarded(string(entry))
			if !ok {
				p.note(x.now, peer, entry)
				return peer
			}
			peer = address
			if !p.trusted(peer) {
				return peer
			}
		}
	}
	return peer
}

// parseForwarded parses an entry of X-Forwarded-For: an address, with or without a port, of IPv6 also in
// brackets. Azure's application gateways and IIS add the client's port.
func parseForwarded(entry string) (a netip.Addr, ok bool) {
	a, err := netip.ParseAddr(entry)
	if err != nil {
		if strings.HasSuffix(entry, "]") {
			entry += ":0"
		}
		var both netip.AddrPort
		both, err = netip.ParseAddrPort(entry)
		a = both.Addr()
	}
	return a.Unmap(), err == nil
}

func (p *proxies) trusted(a netip.Addr) bool {
	return slices.ContainsFunc(p.networks, func(network netip.Prefix) bool { return network.Contains(a) })
}

// forwarder is an address that forwarded a request and did not name its client: it is not a
// trusted proxy, most likely a load balancer that is missing in --trusted-proxies, or it is one, and
// the client's entry is no address. Then all its clients have one address here and share the
// limits by address. No request fails for it, because any client may send the header.
type forwarder struct {
	at    time.Time
	peer  netip.Addr
	entry string // of a trusted proxy: what is no address, or its beginning; empty = the peer is no trusted proxy
}

const (
	proxyCheckInterval = time.Minute // how often the note is renewed
	proxyNoteTime      = time.Hour   // how long the note remains after the last such request
	maxEntry           = 64          // bytes of an entry that the note shows
)

// checkProxy notes the peer that sent a forwarded request if it is not a trusted proxy.
func (p *proxies) checkProxy(x *exchange) {
	if peer := x.conn.peer(); !p.trusted(peer) {
		p.note(x.now, peer, nil)
	}
}

func (p *proxies) note(now time.Time, peer netip.Addr, entry []byte) {
	if last := p.noted.Load(); last == nil || now.Sub(last.at) >= proxyCheckInterval {
		p.noted.Store(&forwarder{now, peer, string(entry[:min(len(entry), maxEntry)])})
	}
}

// Forwarder returns an error that names an address that has forwarded requests in the last hour and did not name their
// clients, and what to do about it; nil = there is none.
func (p *proxies) Forwarder() (todo string, err error) {
	last := p.noted.Load()
	switch {
	case last == nil || time.Since(last.at) > proxyNoteTime:
		return "", nil
	case last.entry == "":
		return "name the network of your load balancers in --trusted-proxies; if it is none of yours, do nothing",
			fmt.Errorf("%s sends X-Forwarded-For or Forwarded, and is not named in --trusted-proxies", last.peer)
	}
	return "have it write addresses, with or without ports; if it is no proxy, take it out of --trusted-proxies",
		fmt.Errorf("%s names a client %+q in X-Forwarded-For, which is no address", last.peer, last.entry)
}
