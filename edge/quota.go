package edge

import (
	"strconv"
	"sync/atomic"
	"time"

	"listedge/limiter"
	"listedge/origin/apikey"
)

// quota is a workspace's quota. Each period has a bucket of its own.
type quota struct {
	apikey.Quota
	limiter   *limiter.Limiter
	workspace string
	current   atomic.Pointer[period]
}

// period is one period of a quota.
type period struct {
	bucket     *limiter.Bucket
	begin, end time.Time
	policy     string // its item of RateLimit-Policy
}

// at returns the period of that moment, by the node's clock. It allocates once in a
// period. Requests of the old period that are still being decided keep its bucket.
func (q *quota) at(now time.Time) *period {
	if p := q.current.Load(); p != nil && !now.Before(p.begin) && now.Before(p.end) {
		return p
	}
	name, begin, end := q.Period.Bounds(now)
	policy, err := limiter.NewQuota(q.Requests, end)
	if err != nil {
		panic("BUG: " + err.Error()) // apikey.MaxQuota is below the limiter's
	}
	policy.Version = q.Version
	item := strconv.AppendInt([]byte(`"quota";q=`), q.Requests, 10)
	item = strconv.AppendInt(append(item, ";w="...), int64(end.Sub(begin)/time.Second), 10)
	p := &period{q.limiter.Bucket(limiter.QuotaBucket(q.workspace, name), policy), begin, end, string(item)}
	q.current.Store(p)
	return p
}
