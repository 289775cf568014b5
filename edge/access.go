package edge

import (
	"sync/atomic"
	"time"
	"unique"

	"listedge/limiter"
	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// client is what a node makes of an API key once, for all its requests: its buckets, and
// the part of the limit headers that does not change.
type client struct {
	bucket          *limiter.Bucket
	workspaceBucket *limiter.Bucket // nil = none
	limit           int64           // tokens that a full bucket of the key has
	workspaceLimit  int64
	policy          unique.Handle[string] // RateLimit-Policy without the quota; one text for all keys with these limits
	quota           *quota                // of the workspace; nil = none
	usage           *usage.Counter
}

// policyOf returns the policy of a limit. A limit that the columns' constraints forbid has the
// zero policy, which admits nothing.
func policyOf(l apikey.Limit) limiter.Policy {
	p, _ := limiter.NewPolicy(l.Rate, l.Burst)
	p.Version = l.Version
	return p
}

// quota is how many requests a workspace may make in a day or month; each has its own count.
type quota struct {
	apikey.Quota
	limiter   *limiter.Limiter
	workspace string
	current   atomic.Pointer[period]
}

// period is one day or month of a workspace's quota, with the count of its requests.
type period struct {
	count      *limiter.Counter
	begin, end time.Time
	policy     string // its item of RateLimit-Policy
}

// at returns the quota's period in which now is, by the node's clock. It allocates once in a
// period. Requests of the old period that are still being decided keep its count.
func (q *quota) at(now time.Time) *period {
	if p := q.current.Load(); p != nil && !now.Before(p.begin) && now.Before(p.end) {
		return p
	}
	name, begin, end := q.Period.Bounds(now)
	var item header
	item.item("quota", "q", q.Requests)
	item.put(";w=")
	item.putNum(int64(end.Sub(begin) / time.Second))
	p := &period{q.limiter.Quota(q.workspace, name, q.Requests, end), begin, end, string(item)}
	q.current.Store(p)
	return p
}
