// Package rawconn has TCP connections that are cheaper to read and to write than
// net's, on Linux: those of clients, of Postgres and of Redis.
package rawconn

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"
)

// Dial is how a connection is made: net.Dialer.DialContext, for one.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Dialing makes the TCP connections of dial such ones; others stay as they are.
func Dialing(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if tcp, ok := c.(*net.TCPConn); ok && err == nil {
			return New(tcp), nil
		}
		return c, err
	}
}

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
