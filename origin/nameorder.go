package origin

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"listedge/origin/postgres"
)

// otherOrderTTL is how long a node remembers that a server does not sort names as the schema
// does. After that the node reads the server's order again: it may have been repaired.
const otherOrderTTL = time.Minute

// nameOrder remembers how the server of an upstream sorts names. Pages do not wait until
// the order has been read: the first pages by name do without it.
type nameOrder struct {
	known  atomic.Pointer[serverNameOrder]
	wanted atomic.Bool // a page by name came from a server whose order is not known
}

// serverNameOrder is the order of names of one run of a server.
type serverNameOrder struct {
	run   string
	order *postgres.NameOrder // nil = the server does not sort names as the schema does
	until time.Time           // when a nil order is read again
}

// of returns the order of names of that server; nil if it is not known.
func (n *nameOrder) of(by postgres.Server) *postgres.NameOrder {
	known := n.known.Load()
	if known == nil || known.run != by.Run || known.order == nil && time.Now().After(known.until) {
		n.wanted.Store(true)
		return nil
	}
	return known.order
}

// readNames reads the order of names if it is wanted. After a failure it stays wanted.
func (u *upstream) readNames(ctx context.Context) {
	if !u.names.wanted.Load() || !u.breaker.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, postgres.PingTimeout)
	defer cancel()
	conn, err := u.pool.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	order, by, err := postgres.ReadServerNameOrder(ctx, conn.Conn())
	known := &serverNameOrder{run: by.Run}
	switch {
	case err == nil:
		known.order = &order
	case errors.Is(err, postgres.ErrNameOrder):
		known.until = time.Now().Add(otherOrderTTL)
	default:
		return
	}
	u.names.known.Store(known)
	u.names.wanted.Store(false)
}

// NameOrder returns the order of names of the first server for which it is known; nil
// if it is known for none.
func (o *Origin) NameOrder() *postgres.NameOrder {
	if known := o.names.known.Load(); known != nil && known.order != nil {
		return known.order
	}
	for _, s := range o.standbys {
		if known := s.names.known.Load(); known != nil && known.order != nil {
			return known.order
		}
	}
	return nil
}
