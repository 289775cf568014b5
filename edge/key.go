package edge

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync/atomic"
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/limiter"
	"listedge/origin"
	"listedge/prefetch"
	"listedge/stream"
)

// client is what a node makes of a key, once, and finds again on each of its
// requests: the buckets it spends from and the part of its headers that never
// changes.
type client struct {
	bucket          *limiter.Bucket
	workspaceBucket *limiter.Bucket // nil = none
	limit           int64           // burst of the key
	workspaceLimit  int64
	policy          unique.Handle[string] // RateLimit-Policy, which most keys share
	broken          error                 // its limit cannot be enforced, so nothing is served

	shown atomic.Pointer[shown]
	spot  cache.Spot     // of its last page
	trail prefetch.Trail // of its last hit
}

// prefetch has fetched what a request of the client reads, if it asks for the
// same page as the last one.
func (c *client) prefetch() {
	c.bucket.Prefetch()
	c.spot.Prefetch()
	c.trail.Follow()
}

// leaveTrail is for the next request to follow.
func (c *client) leaveTrail(hit *cache.Page) {
	page, pair, body := hit.Places()
	c.trail.Leave([...]uintptr{page, pair, body, c.bucket.Place()})
}

func policyOf(l origin.Limit) (limiter.Policy, error) {
	p, err := limiter.NewPolicy(l.Rate, l.Burst)
	p.Version = l.Version
	return p, err
}

// sharedBucket is a workspace's, which all its keys spend from.
type sharedBucket struct {
	limit  origin.Limit
	bucket *limiter.Bucket
}

// workspaceBucket returns the workspace's one bucket, under its present limit.
func (s *Server) workspaceBucket(workspace uuid.UUID, l origin.Limit) (*limiter.Bucket, error) {
	shared, ok := s.workspaces.Load(workspace)
	if ok && shared.(sharedBucket).limit == l {
		return shared.(sharedBucket).bucket, nil
	}
	policy, err := policyOf(l)
	if err != nil {
		return nil, err
	}
	if !ok {
		b := s.limiter.Bucket(limiter.WorkspaceBucket(workspace.String()), policy)
		shared, ok = s.workspaces.LoadOrStore(workspace, sharedBucket{l, b})
		if !ok {
			return b, nil
		}
	}
	b := shared.(sharedBucket).bucket // another key of the workspace made it
	b.SetPolicy(policy)
	s.workspaces.Store(workspace, sharedBucket{l, b})
	return b, nil
}

// makeClient makes a client of a key, or of a key that has changed: then its
// bucket goes on, under the new limit.
func (s *Server) makeClient(k origin.Key, before, c *client) {
	c.limit, c.workspaceLimit = k.Limit.Burst, k.WorkspaceLimit.Burst
	if before != nil {
		before.spot.Clear()
	}
	policy, err := policyOf(k.Limit)
	if err != nil {
		c.broken = err
		return
	}
	if before != nil && before.bucket != nil {
		c.bucket = before.bucket
		c.bucket.SetPolicy(policy)
	} else {
		c.bucket = s.limiter.Bucket(limiter.KeyBucket(k.Workspace.String(), k.ID.String()), policy)
	}
	lines := appendPolicy(nil, "key", k.Limit)
	if k.WorkspaceLimit.Set {
		c.workspaceBucket, c.broken = s.workspaceBucket(k.Workspace, k.WorkspaceLimit)
		lines = appendPolicy(append(lines, ", "...), "workspace", k.WorkspaceLimit)
	}
	c.policy = unique.Make(string(lines))
}

// appendPolicy renders one item of RateLimit-Policy: q tokens in a window of
// the w seconds in which an empty bucket fills. Rate 0 never does.
func appendPolicy(dst []byte, name string, l origin.Limit) []byte {
	dst = append(append(append(dst, '"'), name...), `";q=`...)
	if l.Rate == 0 {
		return append(dst, '0')
	}
	dst = strconv.AppendInt(dst, l.Burst, 10)
	return strconv.AppendInt(append(dst, ";w="...), int64(math.Ceil(float64(l.Burst)/l.Rate)), 10)
}

// loadTimeout bounds how long a request waits to learn whether its key exists.
const loadTimeout = 1500 * time.Millisecond

// authenticate finds out whose request it is. A text that cannot be a key ends
// here; a key this node does not know is looked up, unless the client's
// address has been wrong too often of late.
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
		if !s.keyring.Seen(hash) {
			if retry := s.guard.blocked(s.clientAddress(x)); retry > 0 {
				return failure{problem: authLimited, retry: retry}
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
		defer cancel()
		var err error
		c.known, err = s.keyring.Load(ctx, hash)
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
	client.prefetch()
	x.client, x.query.Workspace = client, key.Workspace
	return failure{}
}

// Keys is what is to be told of changes of keys (stream.FollowKeys).
func (s *Server) Keys() stream.KeyListener { return keyListener{s.keyring} }

type keyListener struct{ *origin.Keyring[client] }

// Changed implements stream.KeyListener.
func (l keyListener) Changed(c stream.Change) {
	if c.Touches(stream.Keys) {
		l.AllChanged()
		return
	}
	var ids []uuid.UUID
	for _, p := range c.Pairs {
		if p.Collection == stream.Keys {
			ids = append(ids, p.Workspace)
		}
	}
	l.Keyring.Changed(ids)
}

// unauthorised counts the failure against the client's address, and says so
// once there were too many.
func (s *Server) unauthorised(x *exchange, p *problem) failure {
	lookedUp := p == keyRefused
	if retry := s.guard.fail(s.clientAddress(x), lookedUp); retry > 0 {
		return failure{problem: authLimited, retry: retry}
	}
	return failure{problem: p}
}
