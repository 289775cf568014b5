package sandboxtest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Relay is the network between a node and a server. It forwards bytes, and drops them when a
// test says so.
type Relay struct {
	mu       sync.Mutex // guards all below
	listener net.Listener
	to       string
	open     *sync.Cond // signalled when cut changes
	cut      bool
	refuses  bool
	delay    time.Duration
	ended    bool
	conns    map[net.Conn]struct{}
}

// StartRelay starts a relay that leads to an address, until the test ends.
func StartRelay(t testing.TB, to string) *Relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{listener: listener, to: to, conns: map[net.Conn]struct{}{}}
	r.open = sync.NewCond(&r.mu)
	go r.accept(listener)
	t.Cleanup(r.end)
	return r
}

// Addr is host:port of the relay.
func (r *Relay) Addr() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listener.Addr().String()
}

// set changes the relay, and wakes connections that wait.
func (r *Relay) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	r.open.Broadcast()
}

// Lose makes every connection hang, or go on, as when packets are lost: neither side gets
// an error.
func (r *Relay) Lose(cut bool) { r.set(func() { r.cut = cut }) }

// Delay makes every piece of bytes take this much longer.
func (r *Relay) Delay(d time.Duration) { r.set(func() { r.delay = d }) }

// Redirect makes new connections lead to another server. Existing ones stay.
func (r *Relay) Redirect(to string) { r.set(func() { r.to = to }) }

// Sever closes all connections.
func (r *Relay) Sever() {
	r.set(func() {
		for c := range r.conns {
			c.Close()
		}
	})
}

// Refuse closes all connections and refuses new ones, or accepts them again.
func (r *Relay) Refuse(refuse bool) error {
	if refuse {
		r.set(func() { r.refuses = true })
		r.listener.Close()
		r.Sever()
		return nil
	}
	listener, err := net.Listen("tcp", r.Addr())
	if err != nil {
		return err
	}
	r.set(func() { r.listener, r.refuses = listener, false })
	go r.accept(listener)
	return nil
}

func (r *Relay) end() {
	r.set(func() {
		r.listener.Close()
		r.ended = true
	})
	r.Sever()
}

func (r *Relay) accept(listener net.Listener) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			if !r.passes() {
				from.Close()
				return
			}
			server := ""
			r.set(func() { server = r.to })
			to, err := net.Dial("tcp", server)
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

func (r *Relay) keep(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		if r.conns[c] = struct{}{}; r.ended || r.refuses { // it was accepted before
			c.Close()
		}
	}
}

// passes waits while bytes are delayed or lost. It returns false when the relay is closed.
func (r *Relay) passes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.delay; d > 0 {
		r.mu.Unlock()
		time.Sleep(d)
		r.mu.Lock()
	}
	for r.cut && !r.ended {
		r.open.Wait()
	}
	return !r.ended
}

func (r *Relay) carry(from, to net.Conn) {
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
