package edge

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
	"unique"

	"listedge/limiter"
	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// client is what a node makes of a key once, for all its requests: its buckets, and
// the part of its headers that does not change.
type client struct {
	bucket          *limiter.Bucket
	workspaceBucket *limiter.Bucket // nil = none
	limit           int64           // burst of the key
	workspaceLimit  int64
	policy          unique.Handle[string] // RateLimit-Policy but for the quota, which most keys share
	quota           *quota                // of the workspace; nil = none
	broken          error                 // its limit cannot be enforced, so its requests are refused
	usage           *usage.Counter
}

func policyOf(l apikey.Limit) (limiter.Policy, error) {
	p, err := limiter.NewPolicy(l.Rate, l.Burst)
	p.Version = l.Version
	return p, err
}

// makeClient makes the client of a new or changed key. The bucket of a changed key
// keeps its level and gets the new limit. A key that was moved to another workspace
// gets that workspace's bucket.
func (s *Server) makeClient(k apikey.Key, c *client) {
	c.usage = s.Usage.Counter(usage.Key{Workspace: k.Workspace, ID: k.ID})
	c.limit, c.workspaceLimit = k.Limit.Burst, k.WorkspaceLimit.Burst
	policy, err := policyOf(k.Limit)
	if err != nil {
		c.broken = err
		return
	}
	c.bucket = s.Limiter.Bucket(limiter.KeyBucket(k.Workspace.String(), k.ID.String()), policy)
	lines := appendPolicy(nil, "key", policy)
	if k.WorkspaceLimit.Set {
		shared, err := policyOf(k.WorkspaceLimit)
		if err != nil {
			c.broken = err
			return
		}
		c.workspaceBucket = s.Limiter.Bucket(limiter.WorkspaceBucket(k.Workspace.String()), shared)
		lines = appendPolicy(append(lines, ", "...), "workspace", shared)
	}
	c.policy = unique.Make(string(lines))
	if k.Quota == apikey.InvalidQuota {
		c.broken = fmt.Errorf("the quota of workspace %s is not valid: set it with `listedge workspaces update --quota`", k.Workspace)
		return
	}
	if k.Quota.Period != "" {
		c.quota = &quota{limiter: s.Limiter, workspace: k.Workspace.String(), Quota: k.Quota}
		c.quota.at(time.Now()) // requests of this period allocate nothing
	}
}

// appendPolicy renders an item of RateLimit-Policy: q tokens in a window of the w seconds
// that an empty bucket takes to fill, rounded up, and the rate in tokens a second. q/w is
// not the rate if the bucket fills in less than a second. With rate 0 it never fills. A
// decimal of HTTP has at most three digits after the point (RFC 9651, 4.1.5).
func appendPolicy(dst []byte, name string, p limiter.Policy) []byte {
	dst = append(append(append(dst, '"'), name...), `";q=`...)
	if p.Rate == 0 {
		return append(dst, '0')
	}
	dst = strconv.AppendInt(dst, p.Burst, 10)
	dst = strconv.AppendInt(append(dst, ";w="...), (p.TimeFor(p.Units())+999_999)/1_000_000, 10)
	thousandths := (p.Rate + 500) / 1000
	if thousandths == 0 {
		return dst
	}
	return strconv.AppendFloat(append(dst, ";rate="...), float64(thousandths)/1000, 'f', -1, 64)
}

// quota is a workspace's quota. Each period has a count of its own.
type quota struct {
	apikey.Quota
	limiter   *limiter.Limiter
	workspace string
	current   atomic.Pointer[period]
}

// period is one period of a quota.
type period struct {
	count      *limiter.Counter
	begin, end time.Time
	policy     string // its item of RateLimit-Policy
}

// at returns the period of that moment, by the node's clock. It allocates once in a
// period. Requests of the old period that are still being decided keep its count.
func (q *quota) at(now time.Time) *period {
	if p := q.current.Load(); p != nil && !now.Before(p.begin) && now.Before(p.end) { // mutation: a request counts in the period of another
		return p
	}
	name, begin, end := q.Period.Bounds(now)
	item := strconv.AppendInt([]byte(`"quota";q=`), q.Requests, 10)
	item = strconv.AppendInt(append(item, ";w="...), int64(end.Sub(begin)/time.Second), 10)
	p := &period{q.limiter.Quota(q.workspace, name, q.Requests, end), begin, end, string(item)}
	q.current.Store(p)
	return p
}
