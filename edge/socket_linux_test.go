//go:build amd64 || arm64

package edge

import (
	"net"
	"runtime"
	"testing"
	"time"
	"weak"
)

// An answer of usual size goes out by one call of ours, one whose call would
// take long by net's.
func TestAnAnswerIsWrittenAtOnceOrByNet(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	for _, c := range []struct{ size, sent int }{{100, 400}, {atOnce / 4, atOnce}, {atOnce/4 + 1, 0}} {
		near, far := tcpPair(t)
		_ = near.SetWriteBuffer(4 * atOnce)
		go func() { _, _ = far.Read(make([]byte, 1<<20)) }()
		made := newConn(near, s)
		if made.Conn != made.socket {
			t.Fatal("it is not read as it is written")
		}
		piece := make([]byte, c.size)
		if err := made.socket.write(&net.Buffers{piece, piece, piece, piece}); err != nil || made.socket.sent != c.sent {
			t.Errorf("of four pieces of %d bytes, %d bytes were sent at once, want %d (%v)", c.size, made.socket.sent, c.sent, err)
		}
	}
}

// Who has had a page and is quiet since does not keep it in memory.
func TestASocketKeepsNoPage(t *testing.T) {
	near, _ := tcpPair(t)
	s := newSocket(near)
	page := make([]byte, 20_000)
	kept := weak.Make(&page[0])
	if err := s.write(&net.Buffers{page}); err != nil {
		t.Fatal(err)
	}
	page = nil
	for deadline := time.Now().Add(10 * time.Second); kept.Value() != nil; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("kept")
		}
	}
	runtime.KeepAlive(s)
}
