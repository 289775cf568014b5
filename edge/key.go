package edge

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"listedge/limiter"
	"listedge/origin"
)

// client is what a node makes of a key, once, and finds again on each of its
// requests: the buckets it spends from and the part of its headers that never
// changes.
type client struct {
	bucket          *limiter.Bucket
	workspaceBucket *limiter.Bucket // nil = none
	limit           int64           // burst of the key
	workspaceLimit  int64
	policy          []byte // RateLimit-Policy
	broken          error  // its limit cannot be enforced, so nothing is served
}

// workspaceLimit names a workspace's bucket, which all its keys share.
type workspaceLimit struct {
	workspace uuid.UUID
	limit     origin.Limit
}

func (s *Server) newClient(k origin.Key) *client {
	c := &client{limit: k.Limit.Burst, workspaceLimit: k.WorkspaceLimit.Burst}
	policy, err := limiter.NewPolicy(k.Limit.Rate, k.Limit.Burst)
	if err != nil {
		c.broken = err
		return c
	}
	c.bucket = s.limiter.Bucket(limiter.KeyBucket(k.Workspace.String(), k.ID.String()), policy)
	c.policy = appendPolicy(c.policy, "key", k.Limit)
	if !k.WorkspaceLimit.Set {
		return c
	}
	name := workspaceLimit{k.Workspace, k.WorkspaceLimit}
	if shared, ok := s.workspaces.Load(name); ok {
		c.workspaceBucket = shared.(*limiter.Bucket)
	} else {
		if policy, err = limiter.NewPolicy(k.WorkspaceLimit.Rate, k.WorkspaceLimit.Burst); err != nil {
			c.broken = err
			return c
		}
		shared, _ := s.workspaces.LoadOrStore(name, s.limiter.Bucket(limiter.WorkspaceBucket(k.Workspace.String()), policy))
		c.workspaceBucket = shared.(*limiter.Bucket)
	}
	c.policy = appendPolicy(append(c.policy, ", "...), "workspace", k.WorkspaceLimit)
	return c
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
	header := x.http.Request.Header.PeekAll(headerKey)
	if len(header) != 1 || len(header[0]) == 0 {
		return s.unauthorised(x, keyMissing)
	}
	hash, ok := origin.HashKey(header[0])
	if !ok {
		return s.unauthorised(x, keyMalformed)
	}
	key, client, ok := s.keyring.Known(hash, x.now)
	if !ok {
		if !s.keyring.Seen(hash) {
			if retry := s.guard.blocked(s.clientAddress(x.http), x.now); retry > 0 {
				return failure{problem: authLimited, retry: retry}
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
		defer cancel()
		var err error
		key, client, err = s.keyring.Load(ctx, hash)
		switch {
		case errors.Is(err, origin.ErrUnknownKey):
			return s.unauthorised(x, keyRefused)
		case err != nil:
			return failure{problem: keysAway, retry: retrySoon, cause: err}
		}
	}
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

// unauthorised counts the failure against the client's address, and says so
// once there were too many.
func (s *Server) unauthorised(x *exchange, p *problem) failure {
	if retry := s.guard.fail(s.clientAddress(x.http), x.now); retry > 0 {
		return failure{problem: authLimited, retry: retry}
	}
	return failure{problem: p}
}

// clientAddress is the connection's peer, or, when that is a trusted proxy,
// the last address in X-Forwarded-For that is not one.
func (s *Server) clientAddress(ctx *fasthttp.RequestCtx) netip.Addr {
	var peer netip.Addr
	if tcp, ok := ctx.RemoteAddr().(*net.TCPAddr); ok {
		peer, _ = netip.AddrFromSlice(tcp.IP)
		peer = peer.Unmap()
	}
	if !s.trusted(peer) {
		return peer
	}
	lines := ctx.Request.Header.PeekAll(fasthttp.HeaderXForwardedFor)
	for i := len(lines) - 1; i >= 0; i-- {
		for rest := lines[i]; len(rest) > 0; {
			var last []byte
			rest, last = cutLast(rest)
			address, err := netip.ParseAddr(string(last))
			if err != nil {
				return peer
			}
			if peer = address.Unmap(); !s.trusted(peer) {
				return peer
			}
		}
	}
	return peer
}

func (s *Server) trusted(a netip.Addr) bool {
	for _, proxies := range s.proxies {
		if proxies.Contains(a) {
			return true
		}
	}
	return false
}
