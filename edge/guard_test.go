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
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for i := range failureBurst {
		if retry := g.blocked(a, now); retry != 0 {
			t.Fatalf("blocked after %d failures", i)
		}
		if retry := g.fail(a, now); retry != 0 {
			t.Fatalf("refused after %d failures", i)
		}
	}
	if g.blocked(a, now) < 1 || g.fail(a, now) < 1 {
		t.Error("not limited after the burst")
	}
	if g.blocked(b, now) != 0 {
		t.Error("another address is limited too")
	}
	later := now.Add(time.Second)
	admitted := 0
	for range 3 * failuresPerSecond {
		if g.fail(a, later) == 0 {
			admitted++
		}
	}
	if admitted != failuresPerSecond {
		t.Errorf("%d failures admitted after a second, want %d", admitted, failuresPerSecond)
	}
}

func TestGuardTakesAnIPv6NetworkForOneClient(t *testing.T) {
	g, now := newGuard(), time.Now()
	first, second := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::ffff:2")
	other := netip.MustParseAddr("2001:db8:0:1::1")
	for range failureBurst {
		g.fail(first, now)
	}
	if g.blocked(second, now) == 0 || g.blocked(other, now) != 0 {
		t.Error("want one budget per /64")
	}
}

func TestGuardForgetsTheOldestAddresses(t *testing.T) {
	g, now := newGuard(), time.Now()
	for i := range guardedAddresses + 1000 {
		g.fail(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now)
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
		{"192.0.2.1", []string{"198.51.100.7"}, "192.0.2.1"}, // not a proxy: not believed
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
		var ctx fasthttp.RequestCtx
		var request fasthttp.Request
		for _, f := range c.forwarded {
			request.Header.Add("X-Forwarded-For", f)
		}
		ctx.Init(&request, &net.TCPAddr{IP: net.ParseIP(c.peer), Port: 1}, nil)
		if got := s.clientAddress(&ctx); got != netip.MustParseAddr(c.want) {
			t.Errorf("%s, %q: %s, want %s", c.peer, c.forwarded, got, c.want)
		}
	}
}
