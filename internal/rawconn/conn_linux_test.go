//go:build amd64 || arm64

package rawconn

import (
	"io"
	"runtime"
	"testing"
	"time"
	"weak"
)

// A write of usual size is one system call of this package. A large write is left to net.
func TestWritesGoOutAtOnceOrByNet(t *testing.T) {
	for _, c := range []struct{ size, sent int }{{100, 100}, {atOnce, atOnce}, {atOnce + 1, 0}} {
		near, far := tcpPair(t)
		_ = near.SetWriteBuffer(4 * atOnce)
		go func() { _, _ = io.Copy(io.Discard, far) }()
		s := New(near).(*Conn)
		if n, err := s.Write(make([]byte, c.size)); err != nil || n != c.size || s.sent != c.sent {
			t.Errorf("of %d bytes, %d were sent at once, want %d (%v)", c.size, s.sent, c.sent, err)
		}
	}
}

// A read takes no longer than a write, however much has come and there is room
// for.
func TestAReadTakesABoundedAmount(t *testing.T) {
	const size = 1 << 20
	near, far := tcpPair(t)
	_ = near.SetReadBuffer(4 * atOnce)
	go func() { _, _ = far.Write(make([]byte, size)) }()
	s, room, most := New(near), make([]byte, size), 0
	for got := 0; got < size; {
		n, err := s.Read(room)
		if err != nil {
			t.Fatal(err)
		}
		got, most = got+n, max(most, n)
	}
	if most > atOnce {
		t.Errorf("one read took %d bytes", most)
	}
}

// An idle connection keeps no page in memory that it has written.
func TestASocketKeepsNoPage(t *testing.T) {
	for _, size := range []int{20_000, atOnce + 1} { // of which net writes the latter
		near, far := tcpPair(t)
		go func() { _, _ = io.Copy(io.Discard, far) }()
		s := New(near)
		page := make([]byte, size)
		kept := weak.Make(&page[0])
		if _, err := s.Write(page); err != nil {
			t.Fatal(err)
		}
		page = nil
		for deadline := time.Now().Add(10 * time.Second); kept.Value() != nil; runtime.GC() {
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes are kept", size)
			}
		}
		runtime.KeepAlive(s)
	}
}
