package main

import (
	"net"
	"sync"
	"testing"
)

// relay is the network between a node and a server. It forwards bytes, and drops them when a
// test says so.
type relay struct {
	listener net.Listener

	mu    sync.Mutex // guards all below
	to    string
	open  *sync.Cond // signalled when cut changes
	cut   bool
	ended bool
	conns map[net.Conn]struct{}
}

func startRelay(t testing.TB, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, to: to, conns: map[net.Conn]struct{}{}}
	r.open = sync.NewCond(&r.mu)
	go r.accept()
	t.Cleanup(r.end)
	return r
}

func (r *relay) addr() string { return r.listener.Addr().String() }

// lose makes every connection hang, or go on, as when packets are lost: neither side gets
// an error.
func (r *relay) lose(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	r.open.Broadcast()
}

// redirect makes new connections lead to another server. Existing ones stay.
func (r *relay) redirect(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
}

// sever closes all connections.
func (r *relay) sever() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
}

func (r *relay) destination() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to
}

func (r *relay) end() {
	r.listener.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.open.Broadcast()
	for c := range r.conns {
		c.Close()
	}
}

func (r *relay) accept() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			if !r.passes() {
				from.Close()
				return
			}
			to, err := net.Dial("tcp", r.destination())
			if err != nil {
				from.Close()
				return
			}
			r.keep(from, to)
			go r.carry(to, from)
			r.carry(from, to)
		}()
	}
}

func (r *relay) keep(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		if r.conns[c] = struct{}{}; r.ended {
			c.Close()
		}
	}
}

// passes waits while bytes are lost. It returns false when the relay is closed.
func (r *relay) passes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.cut && !r.ended {
		r.open.Wait()
	}
	return !r.ended
}

func (r *relay) carry(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && r.passes() {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
