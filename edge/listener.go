package edge

import (
	"net"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/metrics"
)

// bounded refuses connections beyond maxConns with a proper answer. fasthttp
// would refuse them too, but in plain text.
func (s *Server) bounded(l net.Listener) net.Listener {
	return &boundedListener{Listener: l, server: s}
}

type boundedListener struct {
	net.Listener
	server *Server
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.server.metrics.ConnectionOpened() <= l.server.maxConns {
			return newConn(c, l.server), nil
		}
		go l.refuse(c) // ends within a second
	}
}

func (l *boundedListener) refuse(c net.Conn) {
	defer l.server.metrics.ConnectionClosed()
	began := time.Now()
	id := append(l.server.ids.prefix(), '0')
	defer func() {
		took := time.Since(began)
		l.server.metrics.Stripe().Answered(metrics.RouteNone, metrics.OutcomeError, tooManyConns.status, took)
		e := entry{began: began, took: took, status: tooManyConns.status, outcome: metrics.OutcomeError, problem: tooManyConns}
		e.setID(id)
		l.server.keep(l.server.journal.sheet(), failed, &e)
	}()
	defer c.Close()
	body := problemBody(nil, tooManyConns, &faults{}, id)
	answer := "HTTP/1.1 " + strconv.Itoa(tooManyConns.status) + " " + fasthttp.StatusMessage(tooManyConns.status) +
		"\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n" + noSniff +
		"Connection: close\r\nRetry-After: " + strconv.Itoa(retrySoon) + "\r\nX-Request-Id: " + string(id) +
		"\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write(append([]byte(answer), body...))
}
