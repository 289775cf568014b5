//go:build !linux || !(amd64 || arm64)

package edge

import "net"

// socket is a TCP connection as net has it; see socket_linux.go.
type socket struct{ *net.TCPConn }

func newSocket(c *net.TCPConn) *socket { return &socket{c} }

// write writes the pieces, and uses them up.
func (s *socket) write(pieces *net.Buffers) error {
	_, err := pieces.WriteTo(s.TCPConn)
	return err
}
