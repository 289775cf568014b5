package edge

import (
	"context"
	"errors"
	"time"

	"listedge/internal/changefeed"
	"listedge/origin"
)

// loadTimeout bounds how long a request waits to learn whether its key exists.
const loadTimeout = 1500 * time.Millisecond

// authenticate finds out whose request it is. A text that cannot be a key ends
// here; a key this node does not know is looked up, behind those of others where
// the client's address has been wrong too often of late. It is not refused for
// that: behind one address there may be many clients.
func (s *Server) authenticate(x *exchange) failure {
	if len(x.asked.key) != 1 || len(x.asked.key[0]) == 0 {
		return s.unauthorised(x, keyMissing)
	}
	c := x.conn
	hash, again, ok := c.hashKey(x.asked.key[0])
	if !ok {
		return s.unauthorised(x, keyMalformed)
	}
	if !again || !s.keyring.StillKnown(c.known, x.now) {
		c.known = s.keyring.Known(hash, c.keyPlace, x.now)
	}
	if c.known == nil {
		load := s.keyring.Load
		if s.guard.exhausted(s.clientAddress(x)) {
			load = s.keyring.LoadSuspect
		}
		ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
		defer cancel()
		var err error
		c.known, err = load(ctx, hash)
		x.passed(stepKey)
		switch {
		case errors.Is(err, origin.ErrUnknownKey):
			return s.unauthorised(x, keyRefused)
		case err != nil:
			return failure{problem: keysAway, retry: retrySoon, cause: err}
		}
	}
	if s.timed {
		x.passed(stepKey)
	}
	x.known = c.known
	key, client := &c.known.Key, &c.known.Value
	switch {
	case !key.Valid(x.now):
		return s.unauthorised(x, keyRefused)
	case key.Suspended:
		return failure{problem: suspended}
	case !key.May(x.query.Collection):
		return failure{problem: scopeMissing}
	case client.broken != nil:
		return failure{problem: internalError, cause: client.broken}
	}
	x.client, x.query.Workspace = client, key.Workspace
	return failure{}
}

// Keys has to be given the changes in the database.
func (s *Server) Keys() changefeed.Listener { return s.keyring }

// unauthorised counts the failure against the client's address, and says so
// once there were too many.
func (s *Server) unauthorised(x *exchange, p *problem) failure {
	lookedUp := p == keyRefused
	if retry := s.guard.fail(s.clientAddress(x), lookedUp); retry > 0 {
		return failure{problem: authLimited, retry: retry}
	}
	return failure{problem: p}
}
