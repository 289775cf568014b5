package sandboxtest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Relay is the network between a node and a server. It forwards bytes, and drops them when a
// test says so.
type Relay struct {
	address   string
	listener  net.Listener
	accepting sync.WaitGroup // until the listener is closed
	clients   sync.Map       // all connections that it accepted

	to    atomic.Value // the address of the server
	delay atomic.Int64
	lost  atomic.Bool
	open  sync.RWMutex // locked while bytes are lost
}

// StartRelay starts a relay that leads to an address, until the test ends.
func StartRelay(t testing.TB, to string) *Relay {
	t.Helper()
	return StartRelayAt(t, "127.0.0.1:0", to)
}

// StartRelayAt starts one that listens on an address of one's choice.
func StartRelayAt(t testing.TB, address, to string) *Relay {
	t.Helper()
	r := &Relay{address: address}
	r.Redirect(to)
	must(t, r.Refuse(false))
	r.address = r.listener.Addr().String()
	t.Cleanup(func() {
		_ = r.Refuse(true)
		r.Lose(false)
	})
	return r
}

// Addr is host:port of the relay.
func (r *Relay) Addr() string { return r.address }

// Lose makes every connection hang, or go on, as when packets are lost: neither side gets
// an error.
func (r *Relay) Lose(lose bool) {
	switch was := r.lost.Swap(lose); {
	case lose && !was:
		r.open.Lock()
	case !lose && was:
		r.open.Unlock()
	}
}

// Delay makes every piece of bytes take this much longer.
func (r *Relay) Delay(d time.Duration) { r.delay.Store(int64(d)) }

// Redirect makes new connections lead to another server. Existing ones stay.
func (r *Relay) Redirect(to string) { r.to.Store(to) }

// Sever closes all connections.
func (r *Relay) Sever() {
	for client := range r.clients.Range {
		client.(net.Conn).Close() // which ends its carriers
	}
}

// Refuse closes all connections and refuses new ones, or accepts them again.
func (r *Relay) Refuse(refuse bool) (err error) {
	if refuse {
		r.listener.Close()
		r.accepting.Wait()
		r.Sever()
		return nil
	}
	r.listener, err = net.Listen("tcp", r.address)
	if err == nil {
		r.accepting.Go(r.accept)
	}
	return err
}

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.clients.Store(client, nil)
		go func() {
			r.await()
			server, err := net.Dial("tcp", r.to.Load().(string))
			if err != nil {
				client.Close()
				return
			}
			go r.carry(server, client)
			r.carry(client, server)
		}()
	}
}

// await waits while bytes are delayed or lost.
func (r *Relay) await() {
	time.Sleep(time.Duration(r.delay.Load()))
	r.open.RLock()
	defer r.open.RUnlock()
}

func (r *Relay) carry(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			r.await()
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
