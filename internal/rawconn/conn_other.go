//go:build !linux || !(amd64 || arm64)

// Package rawconn wraps TCP connections to clients. Here it adds nothing: see conn_linux.go.
package rawconn

import "net"

// New returns net's connection unchanged: conn_linux.go has a faster one.
func New(tcp *net.TCPConn) net.Conn { return tcp }
