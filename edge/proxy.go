package edge

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// clientAddress is the connection's peer, or, if that is a trusted proxy, the
// last address in X-Forwarded-For that is not one.
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
	for _, proxies := range s.proxies {
		if proxies.Contains(a) {
			return true
		}
	}
	return false
}

// untrustedProxy notices requests that were forwarded by an address that is not
// a trusted proxy. Most likely a load balancer is missing in --trusted-proxies;
// then all its clients have one address here and share what is limited by
// address. But anybody may send the header, so this is a note and no failure.
type untrustedProxy struct {
	logged atomic.Bool
	last   atomic.Pointer[forwarder]
}

// forwarder is an address that forwarded a request.
type forwarder struct {
	at   time.Time
	peer netip.Addr
}

const (
	proxyCheckInterval = time.Minute // of each connection
	proxyNoteTime      = time.Hour   // after it was last seen
)

// checkProxy notes who forwarded a request that says it was.
func (s *Server) checkProxy(x *exchange) {
	c := x.conn
	if x.now.Sub(c.proxyChecked) < proxyCheckInterval {
		return
	}
	c.proxyChecked = x.now
	peer := c.peer()
	if s.trusted(peer) {
		return
	}
	s.untrusted.last.Store(&forwarder{x.now, peer})
	if !s.untrusted.logged.Swap(true) {
		s.logger.Warn("all clients of a proxy count as one address: it sends X-Forwarded-For or Forwarded, and --trusted-proxies does not name it", "proxy", peer.String())
	}
}

// UntrustedProxy says which address forwards requests without being a trusted
// proxy; empty = none of late.
func (s *Server) UntrustedProxy() string {
	seen := s.untrusted.last.Load()
	if seen == nil || time.Since(seen.at) > proxyNoteTime {
		return ""
	}
	return fmt.Sprintf("%s sends X-Forwarded-For or Forwarded, and is not named in --trusted-proxies: all clients behind it count as one address", seen.peer)
}
