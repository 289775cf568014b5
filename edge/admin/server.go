package admin

import (
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

// NewServer makes the server of the admin listener. A request and its response have bounds, because
// a connection that has begun a request keeps its place.
func NewServer(o Options, errorLog *log.Logger) *http.Server {
	return &http.Server{Handler: Handler(o), ConnState: (&connections{}).changed,
		ReadTimeout: 2 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 75 * time.Second, ErrorLog: errorLog}
}

// connections are the open ones of the listener. A new one that is too many takes the place of
// that which has waited longest for a request, or else of that whose request is the oldest. So
// nobody keeps a probe out, neither who opens many and sends nothing nor who reads no answer.
type connections struct {
	mu  sync.Mutex   // guards all
	all []connection // the one that changed its state last is the last
}

type connection struct {
	net.Conn
	state http.ConnState
}

func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(one connection) bool { return one.Conn == conn })
	if state == http.StateClosed {
		return
	}
	c.all = append(c.all, connection{conn, state})
	if state == http.StateNew && len(c.all) > maxConnections {
		waits := func(one connection) bool { return one.state != http.StateActive }
		i := max(0, slices.IndexFunc(c.all[:maxConnections], waits)) // the new one is the last
		c.all[i].Close()
		c.all = slices.Delete(c.all, i, i+1)
	}
}
