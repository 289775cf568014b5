package edge

import (
	"errors"

	"listedge/internal/changefeed"
	"listedge/origin/apikey"
)

// authenticate finds the API key of the request and checks it. A malformed key is
// refused at once. A key that is not in memory is looked up in the database. If the
// client's address has sent too many unknown keys, its look-ups wait for those of
// other addresses. They are not refused, because many clients may share an address.
func (s *Server) authenticate(x *exchange) *failure {
	if len(x.headers.key) != 1 || len(x.headers.key[0]) == 0 {
		return s.unauthorised(x, keyMissing)
	}
	lookedUp := false
	entry, err := s.keys.Authenticate(x.headers.key[0], func() (suspect bool) {
		lookedUp = true
		return s.guard.exhausted(s.clientAddress(x))
	})
	if lookedUp || s.Tracer != nil {
		x.endPhase(phaseKey)
	}
	switch {
	case errors.Is(err, apikey.ErrMalformed):
		return s.unauthorised(x, keyMalformed)
	case errors.Is(err, apikey.ErrUnknown):
		return s.unauthorised(x, keyRefused)
	case err != nil:
		return &failure{problem: keysDown, retry: retrySoon, cause: err}
	}
	x.keyEntry = entry
	key, client := &entry.Key, &entry.Value
	if !key.Valid(x.now) {
		return s.unauthorised(x, keyRefused)
	}
	x.client = client
	switch {
	case key.Suspended:
		return &failure{problem: suspended}
	case !key.May(x.query.Collection):
		return &failure{problem: scopeMissing}
	case client.broken != nil:
		return &failure{problem: internalError, cause: client.broken}
	}
	x.query.Workspace = key.Workspace
	return nil
}

// Keys returns the listener that invalidates keys when they change.
func (s *Server) Keys() changefeed.Listener { return s.keys }

// unauthorised counts the failure for the client's address. After too many failures it
// returns a 429 instead of the problem.
func (s *Server) unauthorised(x *exchange, p *problem) *failure {
	bucket := malformedKeys
	if p == keyRefused {
		bucket = refusedKeys
	}
	if f := s.limitAddress(x, bucket, 1, authLimited); f != nil {
		return f
	}
	return &failure{problem: p}
}

// limitAddress takes tokens from a bucket of the client's address. It returns the problem if there are
// too few.
func (s *Server) limitAddress(x *exchange, b addressBucket, tokens int, p *problem) *failure {
	if retry := s.guard.take(s.clientAddress(x), b, tokens); retry > 0 {
		return &failure{problem: p, retry: retry}
	}
	return nil
}
