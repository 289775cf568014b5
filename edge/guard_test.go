package edge

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

func TestGuardLimitsEachAddressByItself(t *testing.T) {
	g, now := newGuard(), time.Now()
	g.now = func() time.Time { return now }
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for i := range failureBurst {
		if g.exhausted(a) {
			t.Fatalf("exhausted after %d failures", i)
		}
		if retry := g.fail(a, true); retry != 0 {
			t.Fatalf("refused after %d failures", i)
		}
	}
	if !g.exhausted(a) || g.fail(a, true) < 1 {
		t.Error("not limited after the burst")
	}
	if g.exhausted(b) {
		t.Error("another address is limited too")
	}
	now = now.Add(time.Second)
	admitted := 0
	for range 3 * failuresPerSecond {
		if g.fail(a, true) == 0 {
			admitted++
		}
	}
	if admitted != failuresPerSecond {
		t.Errorf("%d failures admitted after a second, want %d", admitted, failuresPerSecond)
	}
}

// Texts that cannot be keys cost no look-up, so they do not delay look-ups of other clients.
func TestMalformedKeysDoNotDelayLookUps(t *testing.T) {
	g := newGuard()
	a := netip.MustParseAddr("192.0.2.1")
	limited := false
	for range 3 * failureBurst {
		limited = g.fail(a, false) > 0 || limited
	}
	if !limited {
		t.Error("malformed keys are not limited at all")
	}
	if g.exhausted(a) {
		t.Error("a valid key that is new to this node would wait for its neighbour's typing")
	}
}

func TestGuardIgnoresTimeThatGoesBack(t *testing.T) {
	g, start := newGuard(), time.Now()
	now := start
	g.now = func() time.Time { return now }
	a := netip.MustParseAddr("192.0.2.1")
	admitted := 0
	for i := range 10 * failureBurst {
		now = start.Add(-time.Duration(i%2) * 1400 * time.Millisecond)
		if g.fail(a, true) == 0 {
			admitted++
		}
	}
	if admitted != failureBurst {
		t.Errorf("%d failures admitted in one instant, want %d", admitted, failureBurst)
	}
}

func TestGuardCountsAnIPv6NetworkAsOneClient(t *testing.T) {
	g := newGuard()
	first, second := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::ffff:2")
	other := netip.MustParseAddr("2001:db8:0:1::1")
	for range 2 * failureBurst {
		g.fail(first, true)
	}
	if !g.exhausted(second) || g.exhausted(other) {
		t.Error("want one budget per /64")
	}
}

func TestGuardEvictsTheLeastRecentlyUsedAddresses(t *testing.T) {
	g := newGuard()
	for i := range guardedAddresses + 1000 {
		g.fail(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), false)
	}
	if n := g.addresses.Len(); n != guardedAddresses {
		t.Errorf("%d addresses remembered", n)
	}
}

func TestClientAddress(t *testing.T) {
	s := &Server{proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}}
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
