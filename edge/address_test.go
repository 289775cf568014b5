package edge

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// Refused keys exhaust their address, or the /64 of an IPv6 address. Texts that cannot be keys cost no
// look-up, so they do not delay look-ups of other clients.
func TestGuardLimitsEachAddressByItself(t *testing.T) {
	for _, c := range []struct {
		name, address, other string
		bucket               addressBucket
		exhausts, exhausted  bool // the address, and the other
	}{
		{"refused keys", "192.0.2.1", "192.0.2.2", refusedKeys, true, false},
		{"of an IPv6 network", "2001:db8::1", "2001:db8::ffff:2", refusedKeys, true, true},
		{"of another IPv6 network", "2001:db8::1", "2001:db8:0:1::1", refusedKeys, true, false},
		{"malformed keys", "192.0.2.1", "192.0.2.2", malformedKeys, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, now := newGuard(), time.Now()
			g.now = func() time.Time { return now }
			a, other := netip.MustParseAddr(c.address), netip.MustParseAddr(c.other)
			admitted := func() (n int) {
				for range 2 * failureBurst {
					if g.take(a, c.bucket, 1) == 0 {
						n++
					}
				}
				return n
			}
			if n := admitted(); n != failureBurst || g.take(a, c.bucket, 1) != 1 {
				t.Errorf("%d failures admitted at once, want %d", n, failureBurst)
			}
			if g.exhausted(a) != c.exhausts || g.exhausted(other) != c.exhausted {
				t.Errorf("exhausted: %v, the other %v", g.exhausted(a), g.exhausted(other))
			}
			now = now.Add(time.Second)
			if n := admitted(); n != addressRate {
				t.Errorf("%d failures admitted after a second, want %d", n, addressRate)
			}
		})
	}
}

func TestGuardEvictsTheLeastRecentlyUsedAddresses(t *testing.T) {
	g := newGuard()
	for i := range guardedAddresses + 1000 {
		g.take(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), malformedKeys, 1)
	}
	if n := g.addresses.Len(); n != guardedAddresses {
		t.Errorf("%d addresses remembered", n)
	}
}

func TestClientAddress(t *testing.T) {
	s := &Server{Options: Options{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}}}
	for _, c := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"192.0.2.1", nil, "192.0.2.1"},
		{"192.0.2.1", []string{"198.51.100.7"}, "192.0.2.1"}, // not a trusted proxy
		{"10.0.0.1", nil, "10.0.0.1"},
		{"10.0.0.1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"::ffff:10.0.0.1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"::1", []string{"2001:db8::7"}, "2001:db8::7"},
		{"10.0.0.1", []string{"203.0.113.9, 198.51.100.7"}, "198.51.100.7"}, // the first may be forged
		{"10.0.0.1", []string{"203.0.113.9", "198.51.100.7, 10.2.3.4"}, "198.51.100.7"},
		{"10.0.0.1", []string{"203.0.113.9,10.9.9.9"}, "203.0.113.9"},
		{"10.0.0.1", []string{"203.0.113.9, junk"}, "10.0.0.1"},
		{"10.0.0.1", []string{""}, "10.0.0.1"},
	} {
		var header fasthttp.RequestHeader
		for _, f := range c.forwarded {
			header.Add("X-Forwarded-For", f)
		}
		x := &exchange{conn: &conn{Conn: peerWire{peer: net.ParseIP(c.peer)}}, headers: &requestHeaders{}}
		x.headers.read(&header)
		if got := s.clientAddress(x); got != netip.MustParseAddr(c.want) {
			t.Errorf("%s, %q: %s, want %s", c.peer, c.forwarded, got, c.want)
		}
	}
}

type peerWire struct {
	*wire
	peer net.IP
}

func (w peerWire) RemoteAddr() net.Addr { return &net.TCPAddr{IP: w.peer, Port: 1} }
