package edge

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// clientAddress is the connection's peer, or, when that is a trusted proxy,
// the last address in X-Forwarded-For that is not one.
func (s *Server) clientAddress(x *exchange) netip.Addr {
	peer := x.conn.peer()
	if !s.trusted(peer) {
		return peer
	}
	lines := x.asked.forwarded
	for i := len(lines) - 1; i >= 0; i-- {
		for rest := lines[i]; len(rest) > 0; {
			var last []byte
			rest, last = cutLast(rest)
			address, err := netip.ParseAddr(string(last))
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

// cutLast cuts a comma-separated list before its last element.
func cutLast(list []byte) (rest, last []byte) {
	if i := bytes.LastIndexByte(list, ','); i >= 0 {
		return list[:i], bytes.TrimSpace(list[i+1:])
	}
	return nil, bytes.TrimSpace(list)
}

// unnamedProxy notices connections that say whom they forward for, from
// addresses that are not among the trusted proxies. Most likely a load balancer
// was forgotten there; then all of its clients have one address here, and share
// what is limited by address. It may also be anybody who makes the header up, so
// it is a thing to look at and no failure.
type unnamedProxy struct {
	told atomic.Bool
	last atomic.Pointer[sighting]
}

type sighting struct {
	at   time.Time
	peer netip.Addr
}

const (
	// lookAgain is how often a connection is looked at.
	lookAgain = time.Minute
	// unnamedFor is how long after the last one it is still told.
	unnamedFor = time.Hour
)

// noticeProxy looks who forwards a request.
func (s *Server) noticeProxy(x *exchange) {
	c := x.conn
	if !x.asked.forwardedFor || x.now.Sub(c.proxySeen) < lookAgain {
		return
	}
	c.proxySeen = x.now
	peer := c.peer()
	if s.trusted(peer) {
		return
	}
	s.unnamed.last.Store(&sighting{x.now, peer})
	if !s.unnamed.told.Swap(true) {
		s.logger.Warn("clients are told apart by the address of a proxy: it sends X-Forwarded-For or Forwarded, and --trusted-proxies does not name it", "proxy", peer.String())
	}
}

// UnnamedProxy says who forwards requests and is not a trusted proxy; empty =
// nobody of late.
func (s *Server) UnnamedProxy() string {
	seen := s.unnamed.last.Load()
	if seen == nil || time.Since(seen.at) > unnamedFor {
		return ""
	}
	return fmt.Sprintf("%s sends X-Forwarded-For or Forwarded, and is not named in --trusted-proxies: all clients behind it count as one address", seen.peer)
}
