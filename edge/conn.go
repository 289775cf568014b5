package edge

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/rawconn"
)

func newConn(c net.Conn) *conn {
	made := &conn{Conn: c, idPrefix: []byte(strings.ToLower(rand.Text()[:16]) + "-")}
	if plain, ok := c.(*net.TCPConn); ok {
		made.Conn = rawconn.New(plain)
	}
	made.response.conn = made
	made.exchange.scratch = make([]byte, 0, 1792) // for the longest parameters
	return made
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

// response is what a handler leaves for its connection to send: header lines, and a body
// in pieces, which are copied once. fasthttp would check and copy each header, and copy the
// body twice. Instead, fasthttp gets the response as a body stream, before which it flushes its
// own headers:
//
//	fasthttp:  status, date, type, length, connection ──Flush──► Write: held
//	           WriteTo (not for HEAD and 304) ─────────────────► the body is wanted
//	           Close ──────────────────────────────► headers, lines, body: one write
//
// That takes 1 µs off a hit, and 2.5 µs off one of 20 kB. It relies on how
// fasthttp writes a stream, so TestFasthttpsVersion pins the version that was
// read. A response belongs to its connection, and its pieces must not change
// before Close.
type response struct {
	conn    *conn
	status  int
	kind    string       // Content-Type
	lines   []byte       // header lines, each with its end
	entry   *cache.Entry // the body begins with the entry's; nil = it is the pieces alone
	pieces  [3][]byte
	tail    []byte // the last piece, if only this response has it
	size    int    // of the whole body, in bytes
	pending bool   // from newResponse to Close
	body    bool   // the body is to be sent: not for HEAD and 304
	linger  bool   // the client may still be sending: see linger

	head []byte // what fasthttp wrote, held back: its headers, in parts if its buffer was nearly full
}

var crlf = []byte("\r\n")

// writeBuffer is the size of fasthttp's buffer, in bytes: more than a response's headers. Bodies
// bypass it.
const writeBuffer = 4 << 10

// newResponse returns the connection's response with this status, no lines and no body.
func (c *conn) newResponse(status int) *response {
	r := &c.response
	r.status, r.kind, r.pending = status, "application/json", true
	r.lines, r.tail, r.entry, r.pieces, r.size = r.lines[:0], r.tail[:0], nil, [3][]byte{}, 0
	return r
}

// add appends a header. The value has no line end: it is constant, or was checked.
func (r *response) add(name, value string) {
	r.lines = append(append(append(append(r.lines, name...), ": "...), value...), crlf...)
}

// header returns the value of a header that was added behind another one; nil = none was.
func (r *response) header(name string) []byte {
	_, value, _ := bytes.Cut(r.lines, []byte("\r\n"+name+": "))
	value, _, _ = bytes.Cut(value, crlf)
	return value
}

// setBody sets the whole body, or what it has behind the body of r.entry.
func (r *response) setBody(pieces ...[]byte) {
	if r.entry != nil {
		r.size = r.entry.Size
	}
	for i, p := range pieces {
		r.pieces[i] = p
		r.size += len(p)
	}
}

// bodySize returns the size of the response's body as it is sent.
func (x *exchange) bodySize() int {
	if x.http.IsHead() { // mutation: the body of HEAD is counted
		return 0
	}
	return x.conn.response.size
}

// passTo makes fasthttp send the response when the handler has returned.
func (r *response) passTo(to *fasthttp.Response) {
	to.SetStatusCode(r.status)
	if r.status != fasthttp.StatusNotModified {
		to.Header.SetContentType(r.kind)
	}
	to.SetBodyStream(r, r.size)
	to.ImmediateHeaderFlush = true
}

// SupportsBodyWriteTo makes fasthttp call WriteTo.
func (r *response) SupportsBodyWriteTo() bool { return true }

// WriteTo remembers that Close must send the body.
func (r *response) WriteTo(io.Writer) (int64, error) {
	r.body = true
	return int64(r.size), nil
}

func (r *response) Read([]byte) (int, error) { return 0, errors.New("BUG: a response is not read") }

// Close sends the response, or drops it if fasthttp did not write it.
func (r *response) Close() (err error) {
	if len(r.head) > 0 {
		if err = r.send(); err == nil && r.linger {
			linger(r.conn.Conn)
		}
	}
	r.pending, r.body, r.linger, r.head = false, false, false, r.head[:0]
	r.entry, r.pieces = nil, [len(r.pieces)][]byte{} // an idle connection keeps no page
	return err
}

// maxCopied is how many bytes are collected before a call sends them: a slow client keeps the
// copy for long.
const maxCopied = 60 << 10

// outgoing are buffers in which responses are put together to be sent.
var outgoing = sync.Pool{New: func() any { return new([]byte) }}

// send writes the response to the connection: fasthttp's headers, then lines, then the body,
// mostly by one call.
func (r *response) send() (err error) {
	out := outgoing.Get().(*[]byte)
	b := append(append(append((*out)[:0], r.head[:len(r.head)-len(crlf)]...), r.lines...), crlf...)
	for next := 0; r.body && r.entry != nil && next >= 0 && err == nil; {
		if b, next = r.entry.AppendBody(b, next, maxCopied); next >= 0 {
			_, err = r.conn.Conn.Write(b)
			b = b[:0]
		}
	}
	for _, p := range r.pieces {
		switch {
		case !r.body || err != nil:
		case len(b)+len(p) <= maxCopied:
			b = append(b, p...)
		default: // a document
			if _, err = r.conn.Conn.Write(b); err == nil {
				_, err = r.conn.Conn.Write(p)
			}
			b = b[:0]
		}
	}
	if err == nil && len(b) > 0 {
		_, err = r.conn.Conn.Write(b)
	}
	if cap(b) <= 2*maxCopied {
		*out = b
		outgoing.Put(out)
	}
	return err
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
