package origin

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"listedge/origin/postgres"
)

// otherOrderTTL is how long a server whose order of names is not the schema's is not
// asked again: somebody may repair that.
const otherOrderTTL = time.Minute

// knownNames is the order of names of the server that pages by name come from. Pages
// do not wait for it: the first ones do without.
type knownNames struct {
	known  atomic.Pointer[serverNames]
	wanted atomic.Bool // a page by name came from a server that is not the known one
}

type serverNames struct {
	run   string
	order *postgres.NameOrder // nil = it is not the schema's
	until time.Time           // of nil
}

// of returns the server's order; nil if it is not known.
func (n *knownNames) of(by postgres.Server) *postgres.NameOrder {
	known := n.known.Load()
	if known == nil || known.run != by.Run || known.order == nil && time.Now().After(known.until) {
		n.wanted.Store(true)
		return nil
	}
	return known.order
}

// readNames reads the order of names if it is wanted. If that fails it stays wanted.
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
	known := &serverNames{run: by.Run}
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

// NameOrder is the order of names of a server that pages come from; nil if it is not
// known of any.
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
