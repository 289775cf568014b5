package edge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// repeats is what a connection remembers to recognise requests by. A client
// sends the same header lines with nearly every request, and only the address
// differs: of such a one all is known that fasthttp would find out for 1 µs.
//
//	Read ──► between requests, and all lines but the first as remembered?
//	          │ yes: serve, send ──► Read        (fasthttp takes it for silence)
//	          └ no:  fasthttp reads it ──► handle ──► study: remember its lines
//
// What makes that safe:
//
//   - Only bytes that begin a request are looked at: fasthttp says when it is
//     between two, and then nothing is left in its buffer. A body, or the rest
//     of a head, is never taken for a request.
//   - Only a read that is one request and no more is taken, a GET of HTTP/1.1,
//     which has the lines of another such that fasthttp answered before it read
//     on, so that no body belongs to them. What lines mean does not depend on
//     the address.
//   - Only an address below /v1/ in its plain form is taken, which fasthttp
//     would cut in the same two.
//
// Everything behind that is the same pipeline.
type repeats struct {
	between bool // fasthttp waits for a request
	known   *known

	strangers uint     // requests since the last repeated one
	lesson    []byte   // the present one, as it came, if it is to be learnt
	date      [29]byte // of second
	second    int64    // Unix
	busy      atomic.Int32
}

// The states of repeats.busy.
const (
	quiet     = iota
	answering // a request that fasthttp does not know of
	closing   // as soon as it is answered
)

// known are the lines of a request, and what they say.
type known struct {
	lines  []byte // behind the first, with the empty one
	header fasthttp.RequestHeader
	asked  asked // of header
}

// longestLesson bounds what a connection keeps of a request, in bytes.
const longestLesson = 2 << 10

// betweenRequests is told by fasthttp what it does with a connection.
func betweenRequests(c net.Conn, state fasthttp.ConnState) {
	if c, ok := c.(*conn); ok {
		c.repeats.between = state == fasthttp.StateNew || state == fasthttp.StateIdle
	}
}

// answerRepeat answers what was received, if it repeats another request, and
// says whether it did. scratch is free until the next Read.
func (c *conn) answerRepeat(received, scratch []byte) (answered bool, err error) {
	r := &c.repeats
	r.lesson = r.lesson[:0]
	if !r.between || c.server.draining.Load() {
		return false, nil
	}
	path, parameters, lines, ok := splitHead(received)
	if !ok {
		return false, nil
	}
	if r.known == nil || !equalInConstantTime(lines, r.known.lines) {
		// Of a client whose lines differ every time, few are learnt.
		if r.strangers++; r.strangers&(r.strangers-1) == 0 && len(received) <= longestLesson {
			r.lesson = append(r.lesson, received...)
		}
		return false, nil
	}
	r.strangers = 0
	r.busy.Store(answering)
	x := c.begin(time.Now())
	x.method, x.path, x.parameters, x.asked = methodGet, path, parameters, &r.known.asked
	c.server.serve(x)
	c.readBy = x.now.Add(idleTimeout)
	if err = c.SetWriteDeadline(x.now.Add(writeTimeout)); err == nil {
		err = c.answer.sendAlone(scratch, r.dateOf(x.now))
	}
	x.end()
	if !r.busy.CompareAndSwap(answering, quiet) { // closed meanwhile
		r.busy.Store(quiet)
		return true, errors.Join(net.ErrClosed, c.Close())
	}
	return true, err
}

var methodGet = []byte(fasthttp.MethodGet)

// study remembers the lines of the request that was just answered, if they are
// to be learnt. fasthttp has changed the bytes it came in, hence the lesson. A
// line feed alone ends a line, too, and so a head, for fasthttp: a lesson with
// one may be two requests, with two keys.
func (c *conn) study(x *exchange) {
	lesson := c.repeats.lesson
	c.repeats.lesson = lesson[:0]
	if len(lesson) == 0 || bytes.Count(lesson, []byte("\n")) != bytes.Count(lesson, crlf) || x.http.Request.MayContinue() {
		return
	}
	_, _, lines, _ := splitHead(lesson)
	k := &known{lines: bytes.Clone(lines)}
	x.http.Request.Header.CopyTo(&k.header)
	k.asked.read(&k.header)
	c.repeats.known = k
}

// splitHead splits what is one whole request of a list, in the form nearly all
// clients write it, and nothing else:
//
//	GET /v1/items?limit=50 HTTP/1.1\r\n
//	    path      parameters          lines …\r\n\r\n
func splitHead(p []byte) (path, parameters, lines []byte, ok bool) {
	end := bytes.IndexByte(p, '\n') + 1
	first, plain := bytes.CutSuffix(p[:end], []byte(" HTTP/1.1\r\n"))
	address, get := bytes.CutPrefix(first, []byte("GET "))
	if !plain || !get || !bytes.HasPrefix(address, []byte("/v1/")) || bytes.Index(p, emptyLine) != len(p)-len(emptyLine) {
		return nil, nil, nil, false
	}
	for _, c := range address {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return nil, nil, nil, false
		}
	}
	path, parameters, _ = bytes.Cut(address, []byte{'?'})
	return path, parameters, p[end:], true
}

var emptyLine = []byte("\r\n\r\n")

// equalInConstantTime takes as long for any two texts of a length: there are
// keys in them, and behind a proxy they may be two clients'. (crypto/subtle
// goes byte by byte.)
func equalInConstantTime(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	var differ uint64
	for ; len(a) >= 8; a, b = a[8:], b[8:] {
		differ |= binary.LittleEndian.Uint64(a) ^ binary.LittleEndian.Uint64(b)
	}
	for i := range a {
		differ |= uint64(a[i] ^ b[i])
	}
	return differ == 0
}

// dateOf is the Date of answers at that moment.
func (r *repeats) dateOf(t time.Time) []byte {
	if second := t.Unix(); second != r.second {
		r.second = second
		fasthttp.AppendHTTPDate(r.date[:0], t)
	}
	return r.date[:]
}
