package edge

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"
)

const (
	// acceptRetry is the pause after a failed Accept. Accept fails while there are no free file
	// descriptors, which ends when any client disconnects.
	acceptRetry = 50 * time.Millisecond
	// shortageLog is how often the log says that it fails.
	shortageLog = 10 * time.Second

	// maxRefusals bounds the refused connections that are open to send a response.
	// Further connections are closed without one, because each needs a descriptor.
	maxRefusals = 64
	// refusalTimeout bounds a refusal: handshake, response and closing.
	refusalTimeout = 5 * time.Second
)

// limitedListener accepts up to MaxConnections connections. It answers further ones with a 503
// whose body is a problem; fasthttp would answer in plain text. It returns an error only
// when it is closed, because fasthttp stops serving at any error.
type limitedListener struct {
	net.Listener
	server   *Server
	shortage rate.Sometimes // when it is logged
	refusals chan struct{}  // one for each refusal in progress
}

// openConnections returns how many connections of clients are open, without refused ones, and how
// many may be.
func (s *Server) openConnections() (open, limit int64) {
	return max(0, int64(s.http.GetOpenConnectionsCount())), int64(s.MaxConnections) // -1 before Serve
}

// Accept is called by one goroutine, in which fasthttp counts the connection before the next
// call.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.accept()
		if err != nil {
			return nil, err
		}
		if open, limit := l.server.openConnections(); open < limit {
			return newConn(c, l.server), nil
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
// means that the listener is closed.
func (l *limitedListener) accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if shortage := syscall.Errno(0); !errors.As(err, &shortage) {
			return c, err
		}
		l.shortage.Do(func() { l.server.Logger.Error("cannot accept connections: retrying", "error", err) })
		time.Sleep(acceptRetry)
	}
}

// refuseConnection answers a connection with a 503 and closes it.
func (s *Server) refuseConnection(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(refusalTimeout)) // also of reads, for the handshake
	refused, ctx := newConn(c, s), &fasthttp.RequestCtx{}
	ctx.Init2(refused, silent, false)
	s.answerUnread(ctx, &failure{problem: tooManyConns, cause: fmt.Errorf("%d connections are open, as many as are allowed", s.MaxConnections)})
	w := bufio.NewWriterSize(refused, writeBuffer)
	if ctx.Response.Write(w) == nil {
		_ = w.Flush()
	}
}
