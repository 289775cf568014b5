package edge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/metrics"
)

const (
	// Backoff after a failed Accept. Accept fails while there are no free file
	// descriptors, which ends when any client disconnects.
	acceptRetry    = 5 * time.Millisecond
	acceptRetryMax = time.Second

	// maxRefusals bounds the refused connections that are open to send a response.
	// Further connections are closed without one, because each needs a descriptor.
	maxRefusals = 64
	// refusalTimeout bounds a refusal: handshake, response and closing.
	refusalTimeout = 5 * time.Second
)

// limitedListener accepts up to maxConns connections. It answers further ones with a 503
// whose body is a problem; fasthttp would answer in plain text. It returns an error only
// when it is closed, because fasthttp stops serving at any error.
type limitedListener struct {
	net.Listener
	server   *Server
	failed   time.Time     // when Accept last failed
	refusals chan struct{} // one for each refusal in progress
}

func (s *Server) limitConnections(l net.Listener) net.Listener {
	s.metrics.LimitConnections(s.maxConns)
	return &limitedListener{Listener: l, server: s, refusals: make(chan struct{}, maxRefusals)}
}

// Accept is called by one goroutine.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.accept()
		if err != nil {
			return nil, err
		}
		if l.server.metrics.ConnectionOpened() <= l.server.maxConns {
			return newConn(c, l.server), nil
		}
		l.server.metrics.ConnectionClosed()
		if allowed, suppressed := tooManyConns.log.allow(time.Now()); allowed {
			l.server.logger.LogAttrs(context.Background(), slog.LevelError, "connection refused: too many are open",
				slog.Int64("limit", l.server.maxConns), slog.Uint64("suppressed", suppressed))
		}
		select {
		case l.refusals <- struct{}{}:
			go func() {
				l.server.refuseConnection(c)
				<-l.refusals
			}()
		default:
			c.Close()
		}
	}
}

// accept retries until there is a connection, or an error that is no syscall.Errno, which
// means that the listener is closed. It logs the first failure of a shortage.
func (l *limitedListener) accept() (net.Conn, error) {
	for wait := acceptRetry; ; wait = min(2*wait, acceptRetryMax) {
		c, err := l.Listener.Accept()
		if shortage := syscall.Errno(0); !errors.As(err, &shortage) {
			return c, err
		}
		if time.Since(l.failed) > 2*acceptRetryMax {
			l.server.logger.LogAttrs(context.Background(), slog.LevelError, "cannot accept connections: retrying", slog.Any("error", err))
		}
		time.Sleep(wait)
		l.failed = time.Now()
	}
}

// refuseConnection answers a connection with a 503 and closes it.
func (s *Server) refuseConnection(c net.Conn) {
	defer c.Close()
	began := time.Now()
	_ = c.SetDeadline(began.Add(refusalTimeout)) // also of reads, for the handshake
	id := append(s.ids.prefix(), '0')
	body := problemBody(&failure{problem: tooManyConns}, id)
	response := "HTTP/1.1 " + strconv.Itoa(tooManyConns.status) + " " + fasthttp.StatusMessage(tooManyConns.status) +
		"\r\nContent-Type: application/json\r\n" + noStore + string(appendEveryResponses(nil, id)) +
		"Connection: close\r\nRetry-After: " + strconv.Itoa(retrySoon) + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	_, err := c.Write(append([]byte(response), body...))

	took := time.Since(began)
	s.metrics.Stripe().Answered(metrics.RouteNone, metrics.OutcomeError, tooManyConns.status, took)
	e := logEntry{Record: Record{Time: began.UTC().Round(0), Route: metrics.RouteNone.String(), Status: tooManyConns.status,
		Outcome: metrics.OutcomeError.String(), Message: tooManyConns.message, Took: TimesRecord{Total: took.Seconds()}}}
	e.setID(id)
	s.addToLog(s.log.shard(), failed, &e)
	if err == nil {
		linger(c)
	}
}
