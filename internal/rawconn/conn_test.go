package rawconn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tcpPair returns both ends of a connection over loopback.
func tcpPair(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	near, far = accepted.(*net.TCPConn), c.(*net.TCPConn)
	t.Cleanup(func() { near.Close(); far.Close() })
	for _, c := range []*net.TCPConn{near, far} {
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	}
	return near, far
}

// kindOf is the kind of an error, for callers.
func kindOf(err error) string {
	var known []string
	for _, k := range []error{io.EOF, os.ErrDeadlineExceeded, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, k) {
			known = append(known, k.Error())
		}
	}
	var e *net.OpError
	if errors.As(err, &e) {
		known = append(known, "timeout "+strconv.FormatBool(e.Timeout()))
	}
	return strings.Join(known, ", ")
}

// Whatever the other side does, reads from a socket return the same bytes and errors as those
// from net's own connection.
func TestASocketIsReadLikeAConnection(t *testing.T) {
	type end interface {
		io.Reader
		net.Conn
	}
	for _, c := range []struct {
		name string
		do   func(near end, far *net.TCPConn)
		want string // of net's own connection, a Read of at most 4 bytes after the other
	}{
		{"in two segments", func(_ end, far *net.TCPConn) { send(far, "ab"); send(far, "cd"); far.Close() }, `"abcd" EOF`},
		{"a full buffer", func(_ end, far *net.TCPConn) { send(far, "abcd"); far.Close() }, `"abcd" EOF`},
		{"more than the buffer", func(_ end, far *net.TCPConn) { send(far, "abcdefghij"); far.Close() }, `"abcdefghij" EOF`},
		{"data and end at once", func(_ end, far *net.TCPConn) { send(far, "ab"); far.CloseWrite() }, `"ab" EOF`},
		{"nothing", func(_ end, far *net.TCPConn) { far.Close() }, `"" EOF`},
		{"broken off", func(_ end, far *net.TCPConn) { _ = far.SetLinger(0); far.Close() }, `"" connection reset by peer, timeout false`},
		{"later", func(_ end, far *net.TCPConn) {
			go func() {
				for range 1000 {
					send(far, "a")
					runtime.Gosched()
				}
				far.Close()
			}()
		}, `"` + strings.Repeat("a", 1000) + `" EOF`},
		{"too late already", func(near end, far *net.TCPConn) {
			send(far, "ab")
			_ = near.SetReadDeadline(time.Now().Add(-time.Second))
		}, `"" i/o timeout, timeout true`},
		{"too late", func(near end, _ *net.TCPConn) { _ = near.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) }, `"" i/o timeout, timeout true`},
		{"a deadline that moves up", func(near end, _ *net.TCPConn) {
			go func() { _ = near.SetReadDeadline(time.Now().Add(-time.Second)) }()
		}, `"" i/o timeout, timeout true`},
		{"closed", func(near end, _ *net.TCPConn) { near.Close() }, `"" use of closed network connection, timeout false`},
		{"closed meanwhile", func(near end, _ *net.TCPConn) { go near.Close() }, `"" use of closed network connection, timeout false`},
	} {
		for _, raw := range []bool{false, true} {
			near, far := tcpPair(t)
			var r end = near
			if raw {
				r = New(near)
			}
			c.do(r, far)
			var got []byte
			buffer := make([]byte, 4)
			n, err := r.Read(nil)
			if n != 0 {
				t.Fatalf("%s: %d bytes of none", c.name, n)
			}
			for err == nil {
				n, err = r.Read(buffer)
				got = append(got, buffer[:n]...)
			}
			if got := strconv.Quote(string(got)) + " " + kindOf(err); got != c.want {
				t.Errorf("%s, a socket of this package: %v: %s, want %s (%v)", c.name, raw, got, c.want, err)
			}
		}
	}
}

func send(c net.Conn, s string) { _, _ = io.WriteString(c, s) }

// Every byte arrives once, however slowly it is read. Only the system call refers to what is
// written, and yet no garbage collection frees it.
func TestWhatASocketWritesArrives(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	}()
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 2))
		near, far := tcpPair(t)
		if seed%2 == 0 {
			_ = near.SetWriteBuffer(4096) // little is taken at once
		}
		s := New(near)
		var want []byte
		wrote := make(chan error, 1)
		sizes := make([]int, 40)
		for i := range sizes {
			sizes[i] = r.IntN(1 << r.IntN(18))
			want = append(want, bytes.Repeat([]byte{byte(sizes[i])}, sizes[i])...)
		}
		go func() {
			wrote <- func() error {
				defer near.Close()
				for _, size := range sizes {
					if n, err := s.Write(bytes.Repeat([]byte{byte(size)}, size)); err != nil || n != size {
						return fmt.Errorf("%d bytes of %d: %w", n, size, err)
					}
				}
				return nil
			}()
		}()
		var got []byte
		for buffer := make([]byte, 64<<10); ; {
			n, err := far.Read(buffer[:1+r.IntN(len(buffer)-1)])
			if got = append(got, buffer[:n]...); err != nil {
				break
			}
		}
		if err := <-wrote; err != nil || !bytes.Equal(got, want) {
			t.Fatalf("seed %d: %d bytes of %d, %v", seed, len(got), len(want), err)
		}
	}
}

// A write to a client that does not read, or has closed its connection, fails like one of net.
func TestAWriteThatFailsSaysWhy(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(near, far *net.TCPConn)
		want string
	}{
		{"not read", func(near, _ *net.TCPConn) { _ = near.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) }, "i/o timeout, timeout true"},
		{"too late already", func(near, _ *net.TCPConn) { _ = near.SetWriteDeadline(time.Now().Add(-time.Second)) }, "i/o timeout, timeout true"},
		{"closed", func(near, _ *net.TCPConn) { near.Close() }, "use of closed network connection, timeout false"},
		{"closed meanwhile", func(near, _ *net.TCPConn) { go near.Close() }, "use of closed network connection, timeout false"},
		{"ended", func(near, _ *net.TCPConn) { _ = near.CloseWrite() }, "broken pipe, timeout false"},
	} {
		near, far := tcpPair(t)
		s := New(near)
		c.do(near, far)
		var err error
		for err == nil {
			_, err = s.Write(make([]byte, 50_000))
		}
		if got := kindOf(err); got != c.want {
			t.Errorf("%s: %s, want %s (%v)", c.name, got, c.want, err)
		}
	}
}
