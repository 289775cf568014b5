package edge

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/internal/rawconn"
)

// conn is a connection of the public listener. It checks the line ends of what it reads,
// sets deadlines only when it must, and sends responses. One goroutine uses it at a time;
// only Close may be called by another.
type conn struct {
	net.Conn
	lines    lineChecker // checks all that is read
	response response
	headers  requestHeaders
	exchange exchange
	hits     uint64 // responses that were neither errors nor misses
	idPrefix []byte // random; an id that a request gets here begins with it
	requests uint64 // how many got such an id, which ends with this number

	readBy      time.Time // the deadline of the next Read
	read, write deadline
}

func newConn(c net.Conn) *conn {
	made := &conn{Conn: c, idPrefix: []byte(strings.ToLower(rand.Text()[:16]) + "-")}
	if plain, ok := c.(*net.TCPConn); ok {
		made.Conn = rawconn.New(plain)
	}
	made.response.conn = made
	made.exchange.scratch = make([]byte, 0, 1792) // for the longest parameters
	return made
}

// peer returns the address that the connection comes from; the zero address if it is not TCP.
func (c *conn) peer() (peer netip.Addr) {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		peer, _ = netip.AddrFromSlice(tcp.IP)
	}
	return peer.Unmap()
}

// deadlineSlack is how much later than requested a deadline may expire. A deadline within
// it is not moved, because setting one costs 0.2 µs and a request sets three.
const deadlineSlack = time.Second

// deadline is a connection's deadline to read or to write, as it was last set; zero = none.
type deadline struct{ at time.Time }

// move says whether the deadline must be set anew to expire between t and
// deadlineSlack after it, and to what. The zero time is no deadline.
func (d *deadline) move(t time.Time) (to time.Time, moved bool) {
	if t.IsZero() {
		moved = !d.at.IsZero()
	} else if late := d.at.Sub(t); late < 0 || late > deadlineSlack {
		t, moved = t.Add(deadlineSlack), true
	}
	if moved {
		d.at = t
	}
	return t, moved
}

// SetReadDeadline takes effect at the next Read. Most requests are in the
// buffer already, and their own deadline is never needed.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readBy = t
	return nil
}

func (c *conn) Read(p []byte) (int, error) {
	if t, moved := c.read.move(c.readBy); moved {
		if err := c.Conn.SetReadDeadline(t); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p[:min(len(p), maxRead)])
	if valid := c.lines.check(p[:n]); valid < n {
		p[valid] = 0 // makes fasthttp refuse the request: no header may contain it
		return valid + 1, errLine
	}
	return n, err
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	if t, moved := c.write.move(t); moved {
		return c.Conn.SetWriteDeadline(t)
	}
	return nil
}

func (c *conn) Write(p []byte) (int, error) {
	if c.response.pending {
		c.response.head = append(c.response.head, p...)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// A connection keeps fasthttp's buffers while it is idle: the one it reads into,
// the one it writes headers into, and the last request.
const (
	// maxHeaders is how many headers a request may have. For each, fasthttp takes 64 bytes
	// besides its text.
	maxHeaders = 100
	// keptRequest is the largest request, in bytes, whose buffers are used again.
	// The buffers take four times as much.
	keptRequest = 2 << 10
	// maxRead bounds a Read, in bytes. fasthttp parses what the first Read brought
	// of the headers and then waits for their end, so this bounds the memory of a
	// request that never ends. Most requests are shorter.
	maxRead = 2 << 10
)

// dropRequest frees the buffers of a large request, and of one whose buffers may
// be much larger than its text. fasthttp fills new ones. The request must not be
// used after it.
func (c *conn) dropRequest(ctx *fasthttp.RequestCtx) {
	r := &ctx.Request
	if !c.headers.expands && c.headers.count <= maxHeaders && len(r.Header.RequestURI())+len(r.Header.RawHeaders()) <= keptRequest {
		return
	}
	ctx.Response.SkipBody = ctx.Response.SkipBody || ctx.IsHead() // fasthttp would read it from the request
	ctx.Request = fasthttp.Request{}
	c.headers = requestHeaders{}
}

// lineChecker checks how the lines of a connection's requests begin and end.
// fasthttp takes LF for CRLF in most places, waits for a CRLF in others, and
// joins folded lines, so a proxy in front might see other requests in the same
// bytes (request smuggling). RFC 9112 (2.2, 5.2) lets a server refuse both.
//
// Invariant: every byte belongs to a request's headers, because no body is read.
type lineChecker struct {
	last     byte // the last byte that was checked
	encoding bool // a line began with t, so checkHeaders must look for a Transfer-Encoding
}

var errLine = errors.New("a line ends in LF alone or is folded")

// check returns how many bytes of p are valid: all, or those before an LF without
// CR, or before the blank that folds a line.
func (l *lineChecker) check(p []byte) int {
	for i := 0; ; {
		if l.last == '\n' && i < len(p) {
			if p[i] == ' ' || p[i] == '\t' {
				return i
			}
			l.encoding = l.encoding || p[i]|0x20 == 't'
		}
		end := bytes.IndexByte(p[i:], '\n')
		if end < 0 {
			break
		}
		if i += end; i > 0 {
			l.last = p[i-1]
		}
		if l.last != '\r' {
			return i
		}
		l.last = '\n'
		i++
	}
	if len(p) > 0 {
		l.last = p[len(p)-1]
	}
	return len(p)
}

const (
	lingerTimeout = 500 * time.Millisecond // how long a refused client may go on sending
	refusedBody   = 64 << 10               // the largest body, in bytes, that passes checkHeaders; linger drops as many
)

// linger reads and drops the bytes that a refused client still sends. Reason: closing a
// connection with unread bytes resets it, and the client may see the reset before the
// response.
func linger(c net.Conn) {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTimeout)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c, refusedBody)
}
