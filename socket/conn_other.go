//go:build !linux || !(amd64 || arm64)

// Package socket has TCP connections as net has them.
package socket

import "net"

// Conn is a TCP connection as net has it; see conn_linux.go.
type Conn struct{ *net.TCPConn }

// New takes the connection over.
func New(c *net.TCPConn) *Conn { return &Conn{c} }

// WriteBuffers writes the pieces, and uses them up.
func (s *Conn) WriteBuffers(pieces *net.Buffers) error {
	_, err := pieces.WriteTo(s.TCPConn)
	return err
}
