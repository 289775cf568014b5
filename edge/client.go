package edge

import (
	"math"
	"strconv"
	"unique"

	"listedge/limiter"
	"listedge/origin/apikey"
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

}

func policyOf(l apikey.Limit) (limiter.Policy, error) {
	p, err := limiter.NewPolicy(l.Rate, l.Burst)
	p.Version = l.Version
	return p, err
}

// makeClient makes a client of a key, or of a key that has changed. Its bucket
// goes on under the new limit, and where it was moved to another workspace, it
// is that workspace's: what all nodes spend from.
func (s *Server) makeClient(k apikey.Key, c *client) {
	k.Limit, k.WorkspaceLimit = k.Limit.Enforceable(), k.WorkspaceLimit.Enforceable()
	c.limit, c.workspaceLimit = k.Limit.Burst, k.WorkspaceLimit.Burst
	policy, err := policyOf(k.Limit)
	if err != nil {
		c.broken = err
		return
	}
	c.bucket = s.limiter.Bucket(limiter.KeyBucket(k.Workspace.String(), k.ID.String()), policy)
	lines := appendPolicy(nil, "key", k.Limit)
	if k.WorkspaceLimit.Set {
		shared, err := policyOf(k.WorkspaceLimit)
		if err != nil {
			c.broken = err
			return
		}
		c.workspaceBucket = s.limiter.Bucket(limiter.WorkspaceBucket(k.Workspace.String()), shared)
		lines = appendPolicy(append(lines, ", "...), "workspace", k.WorkspaceLimit)
	}
	c.policy = unique.Make(string(lines))
}

// appendPolicy renders one item of RateLimit-Policy: q tokens in a window of
// the w seconds in which an empty bucket fills. Rate 0 never does.
func appendPolicy(dst []byte, name string, l apikey.Limit) []byte {
	dst = append(append(append(dst, '"'), name...), `";q=`...)
	if l.Rate == 0 {
		return append(dst, '0')
	}
	dst = strconv.AppendInt(dst, l.Burst, 10)
	return strconv.AppendInt(append(dst, ";w="...), int64(math.Ceil(float64(l.Burst)/l.Rate)), 10)
}
