// Package rawconn has TCP connections that are cheaper to read and write than net's, on
// Linux: those of clients, of Postgres and of Redis. It is the only package that
// uses unsafe.
package rawconn

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"
)

// Dial makes a connection, as net.Dialer.DialContext does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Dialing turns the TCP connections of dial into Conns; others stay as they are.
func Dialing(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if tcp, ok := c.(*net.TCPConn); ok && err == nil {
			return New(tcp), nil
		}
		return c, err
	}
}

// Unread says whether a read would return at once, with data or with the end of the
// connection. It does not wait, and leaves the data. With TLS it looks at the
// encrypted bytes.
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
