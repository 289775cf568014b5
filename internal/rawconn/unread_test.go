package rawconn

import (
	"crypto/tls"
	"net"
	"testing"
	"time"
)

// Unread bytes are reported, and stay; nothing is reported of an open
// connection on which nothing has come.
func TestUnreadBytesAreReportedAndKept(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(near, far *net.TCPConn)
		want bool
	}{
		{"nothing", func(_, _ *net.TCPConn) {}, false},
		{"everything was read", func(near, far *net.TCPConn) { send(far, "a"); _, _ = near.Read(make([]byte, 1)) }, false},
		{"bytes", func(_, far *net.TCPConn) { send(far, "abc") }, true},
		{"the end", func(_, far *net.TCPConn) { far.Close() }, true},
		{"reset by the other side", func(_, far *net.TCPConn) { _ = far.SetLinger(0); far.Close() }, true},
		{"closed by this side", func(near, _ *net.TCPConn) { near.Close() }, true},
		{"a deadline that has passed", func(near, _ *net.TCPConn) { _ = near.SetDeadline(time.Now().Add(-time.Second)) }, false},
	} {
		for name, how := range map[string]func(*net.TCPConn) net.Conn{
			"net's":        func(c *net.TCPConn) net.Conn { return c },
			"this package": func(c *net.TCPConn) net.Conn { return New(c) },
			"TLS":          func(c *net.TCPConn) net.Conn { return tls.Client(New(c), nil) },
		} {
			near, far := tcpPair(t)
			conn := how(near)
			c.do(near, far)
			if raw, err := near.SyscallConn(); c.want && err == nil {
				_ = raw.Read(unread) // waits until it has come; not where near is closed
			}
			for range 2 { // looking changes nothing
				if got := Unread(conn); got != c.want {
					t.Fatalf("%s, %s: %v", c.name, name, got)
				}
			}
			if c.name == "bytes" {
				got := make([]byte, 9)
				if n, err := near.Read(got); err != nil || string(got[:n]) != "abc" {
					t.Errorf("%s: %q is left, %v", name, got[:n], err)
				}
			}
		}
	}
	pipe, other := net.Pipe()
	defer pipe.Close()
	defer other.Close()
	if Unread(pipe) {
		t.Error("unread bytes of a connection that cannot know")
	}
}
