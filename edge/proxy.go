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

// checkProxy notes the peer that sent a forwarded request if it is not a trusted proxy. It logs
// the first one.
func (s *Server) checkProxy(x *exchange) {
	last := s.untrusted.Load()
	if last != nil && x.now.Sub(last.at) < proxyCheckInterval {
		return
	}
	peer := x.conn.peer()
	if s.trusted(peer) || !s.untrusted.CompareAndSwap(last, &forwarder{x.now, peer}) || last != nil {
		return
	}
	s.Logger.Warn("all clients of a proxy count as one address: it sends X-Forwarded-For or Forwarded, and --trusted-proxies does not name it",
		"proxy", peer.String())
}

// UntrustedProxy says which address has recently forwarded requests without being a
// trusted proxy; empty = none.
func (s *Server) UntrustedProxy() string {
	last := s.untrusted.Load()
	if last == nil || time.Since(last.at) > proxyNoteTime {
		return ""
	}
	return fmt.Sprintf("%s sends X-Forwarded-For or Forwarded, and is not named in --trusted-proxies: all clients behind it count as one address", last.peer)
}
