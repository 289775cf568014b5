package edge

import (
	"bytes"
	"net"
	"net/netip"
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
