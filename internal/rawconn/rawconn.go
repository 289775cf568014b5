// Package rawconn wraps TCP connections so that reads and writes cost less than net's.
// It does so on Linux only. The connections to clients, Postgres and Redis use it. It is
// the only package that imports unsafe.
package rawconn

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"
)

// Dial opens a connection, as net.Dialer.DialContext does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Dialing returns a Dial that wraps the TCP connections of dial (New). Other connections
// stay as they are.
func Dialing(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if tcp, ok := c.(*net.TCPConn); ok && err == nil {
			return New(tcp), nil
		}
		return c, err
	}
}

// Unread says whether a read would return at once, with data or because the connection
// has ended. It neither waits nor consumes data. With TLS it looks for encrypted bytes.
func Unread(c net.Conn) (found bool) {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	withSocket, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := withSocket.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { found = unread(fd) })
	}
	return found || err != nil // an error means that this side has closed the connection
}
