//go:build linux && (amd64 || arm64)

package rawconn

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// Conn is a TCP connection that is read and written by calls which Go's
// scheduler is not told of: that takes a quarter off a hit, and as much off a
// miss. A call that it is told of may sleep for all it knows: it has its monitor
// look every 20 µs whether the processor should do something else meanwhile, and
// the caller may have to get the processor back.
//
// These calls never sleep. They take what is there, or find nothing; waiting is
// left to net, with its deadlines and with what Close does to who waits. And
// they are short: until one returns, its processor does nothing else and a
// garbage collection waits for it, as for any loop over as many bytes.
//
// Like any net.Conn it may be closed meanwhile. One goroutine at a time reads,
// and one writes.
type Conn struct {
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

// atOnce is how much is read or written by such a call, in bytes: 20 µs at
// most, the receiver's share included where it is on the same machine.
const atOnce = 64 << 10

// New takes the connection over.
func New(tcp *net.TCPConn) *Conn {
	c := &Conn{TCPConn: tcp}
	c.raw, _ = tcp.SyscallConn() // fails for no connection at all
	c.receive, c.send = c.receiveNow, c.sendNow
	c.message.Iov = &c.vector[0]
	return c
}

func (c *Conn) Read(p []byte) (int, error) {
	c.in = p[:min(len(p), atOnce)]
	err := c.raw.Read(c.receive)
	switch {
	case err != nil: // closed, or too late
		return 0, err
	case c.failed != 0:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("recvfrom", c.failed)}
	case c.received == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return c.received, nil
}

// receiveNow reads what has come. If that is nothing, it is called again when
// there is something.
func (c *Conn) receiveNow(fd uintptr) (done bool) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd,
		uintptr(unsafe.Pointer(unsafe.SliceData(c.in))), uintptr(len(c.in)), syscall.MSG_DONTWAIT, 0, 0)
	c.received, c.failed = int(n), errno
	return errno != syscall.EAGAIN
}

// SyscallConn is net's, which makes a new one each time.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// unread says whether a read would find anything.
func unread(fd uintptr) bool {
	var first byte
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&first)), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	return errno != syscall.EAGAIN
}

func (c *Conn) Write(p []byte) (int, error) {
	sent, err := c.writeNow(p)
	if err != nil || sent == len(p) {
		return sent, err
	}
	n, err := c.TCPConn.Write(p[sent:]) // waits
	return sent + n, err
}

// WriteBuffers writes the pieces by one call, and uses them up.
func (c *Conn) WriteBuffers(pieces *net.Buffers) error {
	sent, err := c.writeNow(*pieces...)
	if err != nil {
		return err
	}
	if *pieces = behind(*pieces, sent); len(*pieces) == 0 {
		return nil
	}
	_, err = pieces.WriteTo(c.TCPConn) // waits
	return err
}

// writeNow writes of the pieces, as far as there is room for them, what the
// kernel takes, and returns how many bytes those are: none of more than atOnce.
func (c *Conn) writeNow(pieces ...[]byte) (sent int, err error) {
	c.sent = 0
	n, size := min(len(pieces), len(c.vector)), 0
	for i, p := range pieces[:n] {
		c.vector[i] = syscall.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))}
		size += len(p)
	}
	if size <= atOnce {
		c.message.Iovlen = uint64(n)
		err = c.raw.Write(c.send)
	}
	c.vector = [len(c.vector)]syscall.Iovec{} // an idle connection keeps no page
	return c.sent, err
}

// sendNow writes what the kernel takes. Why it takes no more, or what is wrong
// with the connection, whoever writes the rest will learn.
func (c *Conn) sendNow(fd uintptr) (done bool) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&c.message)), syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
	if c.sent = int(n); errno != 0 {
		c.sent = 0
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
