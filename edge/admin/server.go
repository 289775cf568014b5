package admin

import (
	"context"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxConnections bounds the connections to the admin listener: status pages, probes and
// Prometheus need some dozens. More would take the descriptors of the public listener.
const maxConnections = 32

// NewServer makes the server of the admin listener.
func NewServer(o Options, errorLog *log.Logger) *http.Server {
	c := &connections{}
	return &http.Server{Handler: c.mark(Handler(o)), ConnContext: c.add, ConnState: c.changed,
		ReadHeaderTimeout: 2 * time.Second, IdleTimeout: 75 * time.Second, ErrorLog: errorLog}
}

// connections are open. One that is too many takes the place of the one that has waited for
// a request the longest: who opens many and sends nothing keeps nobody out.
type connections struct {
	mu  sync.Mutex // guards all below
	all []*connection
}

type connection struct {
	net.Conn
	serving bool
}

type connectionKey struct{}

func (c *connections) add(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	added := &connection{Conn: conn}
	c.all = append(c.all, added)
	if len(c.all) > maxConnections {
		i := slices.IndexFunc(c.all, func(one *connection) bool { return !one.serving }) // the added one, if all others serve
		c.all[i].Close()
		c.all = slices.Delete(c.all, i, i+1)
	}
	return context.WithValue(ctx, connectionKey{}, added)
}

// mark notes which connections serve a request.
func (c *connections) mark(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one := r.Context().Value(connectionKey{}).(*connection)
		serve := func(now bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			one.serving = now
		}
		serve(true)
		defer serve(false)
		next.ServeHTTP(w, r)
	})
}

// changed puts a connection that waits for its next request behind all others, and removes
// a closed one.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	if state != http.StateIdle && state != http.StateClosed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.all, func(one *connection) bool { return one.Conn == conn }); i >= 0 {
		one := c.all[i]
		c.all = slices.Delete(c.all, i, i+1)
		if state == http.StateIdle {
			c.all = append(c.all, one)
		}
	}
}
