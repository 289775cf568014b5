//go:build !linux || !(amd64 || arm64)

package socket

import "net"

// Conn is a TCP connection as net has it; see conn_linux.go.
type Conn struct{ *net.TCPConn }

// New takes the connection over.
func New(tcp *net.TCPConn) *Conn { return &Conn{tcp} }

// WriteBuffers writes the pieces, and uses them up.
func (c *Conn) WriteBuffers(pieces *net.Buffers) error {
	_, err := pieces.WriteTo(c.TCPConn)
	return err
}
