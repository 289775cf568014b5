package edge

import (
	"net"
	"sync"
	"time"

	"listedge/internal/rawconn"
	"listedge/metrics"
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
	told     told
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
