package edge

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// clientAddress returns the connection's peer. If the peer is a trusted proxy, it returns
// the last address in X-Forwarded-For that is not a trusted proxy.
func (s *Server) clientAddress(x *exchange) netip.Addr {
	peer := x.conn.peer()
	if !s.trusted(peer) {
		return peer
	}
	lines := x.headers.forwarded
	for i := len(lines) - 1; i >= 0; i-- {
		for rest := lines[i]; len(rest) > 0; {
			var last []byte
			if comma := bytes.LastIndexByte(rest, ','); comma >= 0 {
				rest, last = rest[:comma], rest[comma+1:]
			} else {
				rest, last = nil, rest
			}
			address, err := netip.ParseAddr(string(bytes.TrimSpace(last)))
			if err != nil {
				return peer
			}
			if peer = address.Unmap(); !s.trusted(peer) {
				return peer
			}
		}
	}
	return peer
}

// peer is the address that the connection comes from.
func (c *conn) peer() (peer netip.Addr) {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		peer, _ = netip.AddrFromSlice(tcp.IP)
	}
	return peer.Unmap()
}

func (s *Server) trusted(a netip.Addr) bool {
	for _, proxies := range s.Proxies {
		if proxies.Contains(a) {
			return true
		}
	}
	return false
}

// forwarder is an address that forwarded a request although it is not a trusted proxy. Most
// likely it is a load balancer that is missing in --trusted-proxies. Then all its clients have
// one address here and share the limits by address. It is a note and not a failure, because
// any client may send the header.
type forwarder struct {
	at   time.Time
	peer netip.Addr
}

const (
	proxyCheckInterval = time.Minute // how often the note is renewed
	proxyNoteTime      = time.Hour   // how long the note remains after the last such request
)

// checkProxy notes the peer that sent a forwarded request if it is not a trusted proxy.
func (s *Server) checkProxy(x *exchange) {
	if last := s.untrusted.Load(); last != nil && x.now.Sub(last.at) < proxyCheckInterval {
		return
	}
	if peer := x.conn.peer(); !s.trusted(peer) {
		s.untrusted.Store(&forwarder{x.now, peer})
	}
}

// UntrustedProxy is nil, or names the address that has recently forwarded requests without
// being a trusted proxy.
func (s *Server) UntrustedProxy() error {
	last := s.untrusted.Load()
	if last == nil || time.Since(last.at) > proxyNoteTime {
		return nil
	}
	return fmt.Errorf("%s sends X-Forwarded-For or Forwarded, and is not named in --trusted-proxies", last.peer)
}
