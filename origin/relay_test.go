package origin

import (
	"net"
	"net/url"
	"sync"
	"testing"
)

// relay is the network between an Origin and its server. It carries bytes in
// pieces of its own, and stops in the middle of an answer on demand.
type relay struct {
	listener net.Listener
	piece    func() int // how many bytes at most are carried at once

	mu     sync.Mutex // guards all below
	to     string     // where new connections lead
	freed  *sync.Cond // signalled when held, room or ended changes
	held   bool
	room   int // how many bytes of the server's still pass while held
	waits  int // how many connections wait for more
	ended  bool
	conns  map[net.Conn]struct{}
	copies sync.WaitGroup
}

// startRelay returns the URL that leads through it.
func startRelay(t testing.TB, to string, piece func() int) (*relay, string) {
	t.Helper()
	u := must1(url.Parse(to))
	listener := must1(net.Listen("tcp", "127.0.0.1:0"))
	r := &relay{listener: listener, to: u.Host, piece: piece, conns: map[net.Conn]struct{}{}}
	r.freed = sync.NewCond(&r.mu)
	r.copies.Go(r.accept)
	t.Cleanup(r.end)
	u.Host = listener.Addr().String()
	return r, u.String()
}

// whole pieces are as large as they come.
func whole() int { return 64 << 10 }

// hold lets so many bytes of the server's pass, and then none until free.
func (r *relay) hold(bytes int) { r.set(true, bytes) }

func (r *relay) free() { r.set(false, 0) }

func (r *relay) set(held bool, room int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held, r.room = held, room
	r.freed.Broadcast()
}

// redirect leads new connections to another server; those that are there stay.
func (r *relay) redirect(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
}

// holds says whether an answer has come as far as it may.
func (r *relay) holds() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits > 0
}

// pass waits until some of n bytes may, and returns how many; 0 at the end.
func (r *relay) pass(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits++
	defer func() { r.waits-- }()
	for r.held && r.room == 0 && !r.ended {
		r.freed.Wait()
	}
	switch {
	case r.ended:
		return 0
	case r.held:
		n = min(n, r.room)
		r.room -= n
	}
	return n
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
		_ = server.(*net.TCPConn).SetReadBuffer(whole()) // so that a server soon notices that none passes
		r.mu.Lock()
		r.conns[client], r.conns[server] = struct{}{}, struct{}{}
		if r.ended {
			client.Close()
			server.Close()
		}
		r.mu.Unlock()
		r.copies.Go(func() { r.carry(server, client, func(n int) int { return n }) })
		r.copies.Go(func() { r.carry(client, server, r.pass) })
	}
}

// carry goes on until either side ends, and ends the other.
func (r *relay) carry(to, from net.Conn, pass func(int) int) {
	defer to.Close()
	defer from.Close()
	arrived := make([]byte, whole())
	for {
		n, err := from.Read(arrived)
		for sent := 0; sent < n; {
			may := pass(min(n-sent, r.piece()))
			if _, err := to.Write(arrived[sent : sent+may]); err != nil || may == 0 {
				return
			}
			sent += may
		}
		if err != nil {
			return
		}
	}
}

func (r *relay) end() {
	r.listener.Close()
	r.mu.Lock()
	r.ended = true
	r.freed.Broadcast()
	for c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.copies.Wait()
}
