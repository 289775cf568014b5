// Package rawconn has TCP connections that are cheaper to read and to write than
// net's, on Linux: those of clients, of Postgres and of Redis.
package rawconn

import (
	"context"
	"net"
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
