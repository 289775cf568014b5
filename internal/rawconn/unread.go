package rawconn

import (
	"crypto/tls"
	"net"
	"syscall"
)

// Unread says whether there is something to be read from a connection, be it
// that it has ended; it neither takes it nor waits for it. With TLS that goes by
// what arrives enciphered.
func Unread(c net.Conn) (found bool) {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	open, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := open.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { found = unread(fd) })
	}
	return found || err != nil // closed on this side
}
