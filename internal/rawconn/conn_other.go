//go:build !linux || !(amd64 || arm64)

// Package rawconn wraps TCP connections to clients. Here it adds nothing: see conn_linux.go.
package rawconn

import "net"

// Conn is net's TCP connection unchanged: conn_linux.go has the faster one.
type Conn struct{ *net.TCPConn }

// New takes over the connection.
func New(tcp *net.TCPConn) *Conn { return &Conn{tcp} }
