package edge

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
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
			of, suspect := g.beginLookup(a)
			g.endLookup(of)
			if _, too := g.beginLookup(other); suspect != c.exhausts || too != c.exhausted {
				t.Errorf("exhausted: %v, the other %v", suspect, too)
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

// A client whose entry is no address counts as its proxy, which is noted. A client's own entries before the proxy's are not read.
func TestClientAddress(t *testing.T) {
	for _, c := range []struct {
		peer        string
		forwarded   []string
		want, noted string
	}{
		{"192.0.2.1", nil, "192.0.2.1", ""},
		{"192.0.2.1", []string{"198.51.100.7"}, "192.0.2.1", ""}, // not a trusted proxy
		{"10.0.0.1", nil, "10.0.0.1", ""},
		{"10.0.0.1", []string{"198.51.100.7"}, "198.51.100.7", ""},
		{"::ffff:10.0.0.1", []string{"198.51.100.7"}, "198.51.100.7", ""},
		{"::1", []string{"2001:db8::7"}, "2001:db8::7", ""},
		{"10.0.0.1", []string{"203.0.113.9, 198.51.100.7"}, "198.51.100.7", ""}, // the first may be forged
		{"10.0.0.1", []string{"203.0.113.9", "198.51.100.7, 10.2.3.4"}, "198.51.100.7", ""},
		{"10.0.0.1", []string{"203.0.113.9,10.9.9.9"}, "203.0.113.9", ""},
		{"10.0.0.1", []string{"203.0.113.9:1024"}, "203.0.113.9", ""}, // Azure and IIS add the client's port
		{"10.0.0.1", []string{"203.0.113.9:1024, 10.2.3.4:80"}, "203.0.113.9", ""},
		{"10.0.0.1", []string{"203.0.113.9, 198.51.100.7:1 ,10.2.3.4"}, "198.51.100.7", ""},
		{"10.0.0.1", []string{"[2001:db8::7]:5000"}, "2001:db8::7", ""},
		{"10.0.0.1", []string{"[2001:db8::7]"}, "2001:db8::7", ""},
		{"10.0.0.1", []string{"[::ffff:203.0.113.9]:5000"}, "203.0.113.9", ""},
		{"10.0.0.1", []string{"fe80::1%eth0"}, "fe80::1%eth0", ""},
		{"10.0.0.1", []string{"[fe80::1%eth0]:1"}, "fe80::1%eth0", ""},
		{"10.0.0.1", []string{""}, "10.0.0.1", ""},
		{"10.0.0.1", []string{"203.0.113.9,"}, "203.0.113.9", ""}, // RFC 9110, 5.6.1: empty elements are ignored
		{"10.0.0.1", []string{"203.0.113.9", ","}, "203.0.113.9", ""},
		{"10.0.0.1", []string{"203.0.113.9, ,\t, 10.2.3.4 ,", " "}, "203.0.113.9", ""},
		{"10.0.0.1", []string{", ,"}, "10.0.0.1", ""},
		{"10.0.0.1", []string{",10.2.3.4"}, "10.2.3.4", ""},
		{"10.0.0.1", []string{"203.0.113.9, junk"}, "10.0.0.1", "junk"},
		{"10.0.0.1", []string{"junk, 203.0.113.9:1"}, "203.0.113.9", ""},
		{"10.0.0.1", []string{"junk, 10.2.3.4"}, "10.2.3.4", "junk"},
		{"10.0.0.1", []string{"unknown"}, "10.0.0.1", "unknown"},
		{"10.0.0.1", []string{"_hidden"}, "10.0.0.1", "_hidden"},
		{"10.0.0.1", []string{`"203.0.113.9:1"`}, "10.0.0.1", `\"203.0.113.9:1\"`},
		{"10.0.0.1", []string{"0313.0.0161.9"}, "10.0.0.1", "0313.0.0161.9"}, // octal
		{"10.0.0.1", []string{"203.0.113.9:"}, "10.0.0.1", "203.0.113.9:"},
		{"10.0.0.1", []string{"203.0.113.9:65536"}, "10.0.0.1", "203.0.113.9:65536"},
		{"10.0.0.1", []string{"203.0.113.9:-1"}, "10.0.0.1", "203.0.113.9:-1"},
		{"10.0.0.1", []string{"[203.0.113.9]:1"}, "10.0.0.1", "[203.0.113.9]:1"},
		{"10.0.0.1", []string{"[203.0.113.9]"}, "10.0.0.1", "[203.0.113.9]"},
		{"10.0.0.1", []string{"[2001:db8::7"}, "10.0.0.1", "[2001:db8::7"},
		{"10.0.0.1", []string{"2001:db8::7]:5"}, "10.0.0.1", "2001:db8::7]:5"},
		{"10.0.0.1", []string{"[2001:db8::7]5"}, "10.0.0.1", "[2001:db8::7]5"},
		{"10.0.0.1", []string{"[]"}, "10.0.0.1", "[]"},
		{"10.0.0.1", []string{"é\u202e"}, "10.0.0.1", `\u00e9\u202e`},
		{"10.0.0.1", []string{strings.Repeat("a", 70)}, "10.0.0.1", strings.Repeat("a", 64)},
	} {
		s := &Server{proxies: proxies{networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}}}
		got, noted := s.clientAddress(forwarded(c.peer, c.forwarded...)), ""
		if _, err := s.Forwarder(); err != nil {
			noted = err.Error()
		}
		want := ""
		if c.noted != "" {
			want = fmt.Sprintf(`%s names a client "%s" in X-Forwarded-For, which is no address`, got, c.noted)
		}
		if got != netip.MustParseAddr(c.want) || noted != want {
			t.Errorf("%s, %q: %s, want %s; %q, want %q", c.peer, c.forwarded, got, c.want, noted, want)
		}
	}
}

// Whatever an entry is, its client is an address, either its own or the proxy's; then it is noted.
func FuzzForwarded(f *testing.F) {
	for _, entry := range []string{"203.0.113.9:1", "[2001:db8::7]", "[fe80::1%eth0]:80", "unknown", "[]:", "::ffff:203.0.113.9:1", "10.1.1.1:1"} {
		f.Add([]byte(entry))
	}
	proxy := netip.MustParseAddr("10.0.0.1")
	f.Fuzz(func(t *testing.T, entry []byte) {
		if bytes.IndexByte(entry, ',') >= 0 {
			return
		}
		s := &Server{proxies: proxies{networks: []netip.Prefix{netip.PrefixFrom(proxy, 32)}}}
		x := forwarded(proxy.String())
		x.headers.forwarded = [][]byte{entry}
		got := s.clientAddress(x)
		_, note := s.Forwarder()
		if !got.IsValid() || got.Is4In6() || note != nil && got != proxy || note != nil && len(note.Error()) > 1000 {
			t.Fatalf("%q: %s, %v", entry, got, note)
		}
		if a, err := netip.ParseAddr(string(bytes.TrimSpace(entry))); err == nil && got != a.Unmap() {
			t.Fatalf("%q: %s", entry, got)
		}
		if got == proxy {
			return
		}
		for _, form := range []string{"%s", "%s:1", "[%s]", "[%s]:65535"} { // what was read is read in each form of its family
			if got.Is4() == (form[0] == '[') && form != "%s" {
				continue
			}
			if again, ok := parseForwarded(fmt.Sprintf(form, got)); !ok || again != got {
				t.Fatalf("%q: %s, in the form %s %s, %v", entry, got, form, again, ok)
			}
		}
	})
}

// forwarded is a request from a peer, with such headers.
func forwarded(peer string, values ...string) *exchange {
	var header fasthttp.RequestHeader
	for _, v := range values {
		header.Add("X-Forwarded-For", v)
	}
	x := &exchange{conn: &conn{Conn: peerWire{peer: net.ParseIP(peer)}}, headers: &requestHeaders{}, now: time.Now()}
	x.headers.read(&header)
	return x
}

type peerWire struct {
	*wire
	peer net.IP
}

func (w peerWire) RemoteAddr() net.Addr { return &net.TCPAddr{IP: w.peer, Port: 1} }
