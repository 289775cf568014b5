package origin

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// relay is the network between an Origin and its server. It leads to another server on demand.
type relay struct {
	listener net.Listener

	mu     sync.Mutex // guards all below
	to     string     // where new connections lead
	ended  bool
	conns  map[net.Conn]struct{}
	copies sync.WaitGroup
}

// startRelay returns the URL that leads through it.
func startRelay(t testing.TB, to string) (*relay, string) {
	t.Helper()
	u := must1(url.Parse(to))
	listener := must1(net.Listen("tcp", "127.0.0.1:0"))
	r := &relay{listener: listener, to: u.Host, conns: map[net.Conn]struct{}{}}
	r.copies.Go(r.accept)
	t.Cleanup(r.end)
	u.Host = listener.Addr().String()
	return r, u.String()
}

// redirect leads new connections to another server; those that are there stay.
func (r *relay) redirect(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		to := r.to
		r.mu.Unlock()
		server, err := net.Dial("tcp", to)
		if err != nil {
			client.Close()
			continue
		}
		r.mu.Lock()
		r.conns[client], r.conns[server] = struct{}{}, struct{}{}
		if r.ended {
			client.Close()
			server.Close()
		}
		r.mu.Unlock()
		r.copies.Go(func() { r.carry(server, client) })
		r.copies.Go(func() { r.carry(client, server) })
	}
}

// carry goes on until either side ends, and ends the other.
func (r *relay) carry(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	_, _ = io.Copy(to, from)
}

func (r *relay) end() {
	r.listener.Close()
	r.mu.Lock()
	r.ended = true
	for c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.copies.Wait()
}
