//go:build !linux || !(amd64 || arm64)

package rawconn

import (
	"net"
	"syscall"
)

// Conn is net's TCP connection unchanged: conn_linux.go has the faster one.
type Conn struct{ *net.TCPConn }

// New takes over the connection.
func New(tcp *net.TCPConn) *Conn { return &Conn{tcp} }

// WriteBuffers writes the pieces, and consumes them.
func (c *Conn) WriteBuffers(pieces *net.Buffers) error {
	_, err := pieces.WriteTo(c.TCPConn)
	return err
}

// unread says whether a read would find anything.
func unread(fd uintptr) bool {
	_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err != syscall.EAGAIN
}
