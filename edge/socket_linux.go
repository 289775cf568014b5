//go:build linux && (amd64 || arm64)

package edge

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// socket is a TCP connection that is read and written by calls which Go's
// scheduler is not told of, which takes a quarter off a hit. A call that it is
// told of may sleep for all it knows: it has its monitor look every 20 µs
// whether the processor should do something else meanwhile, and the caller may
// have to get the processor back.
//
// These calls never sleep. They take what is there, or find nothing; waiting is
// left to net, with its deadlines and with what Close does to who waits. And
// they are short: until one returns, its processor does nothing else and a
// garbage collection waits for it, as for any loop over as many bytes.
//
// Like any net.Conn it may be closed meanwhile. One goroutine at a time reads,
// and one writes.
type socket struct {
	*net.TCPConn
	raw           syscall.RawConn
	receive, send func(fd uintptr) (done bool) // made once: it allocates

	in       []byte // for receive to fill
	received int
	failed   syscall.Errno

	message syscall.Msghdr // for send, of vector
	vector  [4]syscall.Iovec
	sent    int // bytes
}

// atOnce is how much is written by such a call, in bytes: 20 µs at most, the
// receiver's share included where it is on the same machine.
const atOnce = 64 << 10

func newSocket(c *net.TCPConn) *socket {
	s := &socket{TCPConn: c}
	s.raw, _ = c.SyscallConn() // fails for no connection at all
	s.receive, s.send = s.receiveNow, s.sendNow
	s.message.Iov = &s.vector[0]
	return s
}

func (s *socket) Read(p []byte) (int, error) {
	s.in = p
	err := s.raw.Read(s.receive)
	switch {
	case err != nil: // closed, or too late
		return 0, err
	case s.failed != 0:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: os.NewSyscallError("recvfrom", s.failed)}
	case s.received == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return s.received, nil
}

// receiveNow reads what has come. If that is nothing, it is called again when
// there is something.
func (s *socket) receiveNow(fd uintptr) (done bool) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd,
		uintptr(unsafe.Pointer(unsafe.SliceData(s.in))), uintptr(len(s.in)), syscall.MSG_DONTWAIT, 0, 0)
	s.received, s.failed = int(n), errno
	return errno != syscall.EAGAIN
}

// write writes the pieces, and uses them up.
func (s *socket) write(pieces *net.Buffers) error {
	if s.gather(*pieces) <= atOnce {
		err := s.raw.Write(s.send)
		s.vector = [len(s.vector)]syscall.Iovec{} // an idle connection keeps no page
		if err != nil {
			return err
		}
		if *pieces = behind(*pieces, s.sent); len(*pieces) == 0 {
			return nil
		}
	}
	_, err := pieces.WriteTo(s.TCPConn) // waits
	return err
}

// gather has send write the pieces, as far as there is room for them, and
// returns how many bytes those are.
func (s *socket) gather(pieces net.Buffers) (size int) {
	n := min(len(pieces), len(s.vector))
	for i, p := range pieces[:n] {
		s.vector[i] = syscall.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))}
		size += len(p)
	}
	s.message.Iovlen = uint64(n)
	return size
}

// sendNow writes what the kernel takes. Why it takes no more, or what is wrong
// with the connection, whoever writes the rest will learn.
func (s *socket) sendNow(fd uintptr) (done bool) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&s.message)), syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
	if s.sent = int(n); errno != 0 {
		s.sent = 0
	}
	return true
}

// behind is what follows the first n bytes of the pieces. It changes them.
func behind(pieces net.Buffers, n int) net.Buffers {
	for len(pieces) > 0 && len(pieces[0]) <= n {
		n, pieces = n-len(pieces[0]), pieces[1:]
	}
	if len(pieces) > 0 {
		pieces[0] = pieces[0][n:]
	}
	return pieces
}
