package edge

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/internal/rawconn"
	"listedge/metrics"
	"listedge/origin"
)

// conn is a connection of the public listener. It does for every answer on it
// what net.Conn and fasthttp would do at a price: see answer.go for how one is
// sent. Used by one goroutine at a time, but for Close.
type conn struct {
	net.Conn
	socket   *rawconn.Conn // the same, nil = TLS
	server   *Server
	once     sync.Once
	lines    lines // that it was sent
	answer   answer
	asked    asked
	exchange exchange
	counts   *metrics.Stripe
	sheet    *sheet // of the journal
	hits     uint64 // answered on it
	idPrefix []byte // of the ids of its requests that bring none
	requests uint64 // of these

	proxySeen time.Time // when it was last looked who forwards by it

	readBy      time.Time // what the next Read is to be given
	fresh       bool      // readBy was set after the last Read
	read, write deadline

	// The key that was last sent here, its hash, its place and what is known of
	// it, for which the next request then need not pay (0.4 µs). fasthttp's
	// buffers keep the text as long.
	key      []byte
	keyHash  origin.KeyHash
	keyPlace origin.KeyPlace
	known    *origin.KnownKey[client]
}

func newConn(c net.Conn, s *Server) *conn {
	made := &conn{Conn: c, server: s, counts: s.metrics.Stripe(), idPrefix: s.ids.prefix(), sheet: s.journal.sheet()}
	if plain, ok := c.(*net.TCPConn); ok {
		made.socket = rawconn.New(plain)
		made.Conn = made.socket
	}
	made.answer.conn = made
	made.exchange.scratch = make([]byte, 0, 1024) // decoded, parameters of the longest allowed take as much
	return made
}

// deadlineSlack is how much later than asked for a deadline may strike. Within
// it one that is moved on with every request stays where it is: moving one
// costs 0.2 µs, and a request has three.
const deadlineSlack = time.Second

// deadline is the moment a deadline was set to.
type deadline struct{ at time.Time }

// move says whether the deadline has to be set anew to strike between t and
// deadlineSlack after it, and to what.
func (d *deadline) move(t time.Time) (to time.Time, moved bool) {
	if t.IsZero() { // never
		moved = !d.at.IsZero()
	} else if late := d.at.Sub(t); late < 0 || late > deadlineSlack {
		t, moved = t.Add(deadlineSlack), true
	}
	if moved {
		d.at = t
	}
	return t, moved
}

// SetReadDeadline is put off until there is something to wait for: most
// requests lie in one packet, and their own deadline never comes to be.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readBy, c.fresh = t, true
	return nil
}

// arrival is when the request that is about to be handled had arrived. From
// that moment fasthttp has just reckoned its deadline, unless it had to read on
// after that: reading the clock once more takes 50 ns.
func (c *conn) arrival() time.Time {
	if c.fresh {
		return c.readBy.Add(-readTimeout)
	}
	return time.Now()
}

func (c *conn) Read(p []byte) (int, error) {
	if t, moved := c.read.move(c.readBy); moved {
		if err := c.Conn.SetReadDeadline(t); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p[:min(len(p), readAtOnce)])
	c.fresh = false // it may have waited
	if good := c.lines.good(p[:n]); good < n {
		p[good] = 0 // ends the request's head for fasthttp: no head may have it
		return good + 1, errLine
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
	if c.answer.pending {
		c.answer.hold(p)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close tells that it is closed, once.
func (c *conn) Close() error {
	c.once.Do(c.server.metrics.ConnectionClosed)
	return c.Conn.Close()
}

// hashKey is origin.HashKey, which is not worked out again for the key that
// the connection sent last. The texts are compared in constant time: behind a
// proxy they may be two clients'.
func (c *conn) hashKey(text []byte) (hash origin.KeyHash, again, ok bool) {
	if subtle.ConstantTimeCompare(c.key, text) == 1 {
		return c.keyHash, true, true
	}
	place := c.server.keyring.Place(text)
	if hash, ok = origin.HashKey(text); ok {
		c.key, c.keyHash, c.keyPlace = append(c.key[:0], text...), hash, place
	}
	return hash, false, ok
}

// lines checks how the lines of a connection's requests end and begin.
// fasthttp takes LF for CRLF in most places and waits for a CRLF in others, and
// it joins folded lines; whatever stands in front may see other requests in the
// same bytes. RFC 9112 (2.2, 5.2) has both refused.
//
// Invariant: every byte that comes is of a head, for bodies are never read. So
// this needs to know of nothing but lines.
type lines struct {
	last     byte // before the present bytes
	encoding bool // a line may have been a Transfer-Encoding
}

var errLine = errors.New("a line that ends in LF alone or is folded")

// good returns how many bytes of p are good: all, or those before an LF
// without CR, or before the blank that folds a line.
func (l *lines) good(p []byte) int {
	for i := 0; ; {
		if l.last == '\n' && i < len(p) {
			switch p[i] {
			case ' ', '\t':
				return i
			case 't', 'T': // the fourth letter, as far as it is here, tells it from traceparent
				l.encoding = l.encoding || i+3 >= len(p) || p[i+3]|0x20 == 'n'
			}
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

// lingerTimeout is how long a refused client may go on sending.
const lingerTimeout = 500 * time.Millisecond

// linger reads and drops what a refused client is still sending. To close a
// connection with unread bytes resets it, and a reset can overtake the answer.
func linger(c net.Conn) {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTimeout)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c, refusedBody)
}

// A connection keeps fasthttp's buffers while it is idle: what it reads into,
// what it writes heads into, and the last request. This file has the request
// dropped where it was large; the sizes of the others are in server.go.

const (
	// maxHeaders is how many headers a request may have. fasthttp takes 64 bytes
	// for each, besides its text.
	maxHeaders = 100
	// keptRequest is how large a request may be whose buffers serve for the next
	// one, in bytes. It takes four times as many.
	keptRequest = 2 << 10
	// readAtOnce bounds a Read, in bytes. fasthttp parses what the first Read
	// brought of a head, and then waits for its end: one that never comes keeps the
	// memory of so many bytes' lines. Most requests are shorter.
	readAtOnce = 2 << 10
)

// drop gives the buffers of a large request to the collector, and those that
// may be much larger than their text. fasthttp fills new ones. To be called when
// the request has been answered: nothing of it may be used any more.
func (c *conn) drop(ctx *fasthttp.RequestCtx) {
	r := &ctx.Request
	if !c.asked.bulky && c.asked.count <= maxHeaders && len(r.Header.RequestURI())+len(r.Header.RawHeaders()) <= keptRequest {
		return
	}
	ctx.Response.SkipBody = ctx.Response.SkipBody || ctx.IsHead() // which fasthttp asks the request
	ctx.Request = fasthttp.Request{}
	c.asked = asked{}
}

// whole has buffers for answers that must be one piece, as TLS wants them.
var whole = sync.Pool{New: func() any { return new([]byte) }}

// keptWhole is the largest buffer that is kept for the next answer, in bytes.
const keptWhole = 128 << 10
