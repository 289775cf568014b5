package edge

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"
	"unique"

	"listedge/cache"
	"listedge/limiter"
	"listedge/origin/apikey"
	"listedge/origin/usage"
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
	entry, err := s.Keys.Authenticate(x.headers.key[0], func() (suspect bool) {
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
	}
	x.query.Workspace = key.Workspace
	return nil
}

// unauthorised counts a request without a valid key for the client's address, and returns
// p as its failure; a 429 instead if the address has sent too many.
func (s *Server) unauthorised(x *exchange, p *problem) *failure {
	bucket := malformedKeys
	if p == keyRefused {
		bucket = refusedKeys
	}
	return cmp.Or(s.limitAddress(x, bucket, 1, authLimited), &failure{problem: p})
}

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

// makeClient makes the client of a new or changed key. The bucket of a changed key
// keeps its level and gets the new limit. A key that was moved to another workspace
// gets that workspace's bucket.
func (s *Server) makeClient(k apikey.Key, c *client) {
	c.usage = s.Usage.Counter(usage.Key{Workspace: k.Workspace, ID: k.ID})
	c.limit, c.workspaceLimit = k.Limit.Burst, k.WorkspaceLimit.Burst
	policy := policyOf(k.Limit)
	c.bucket = s.Limiter.Bucket(limiter.KeyBucket(k.Workspace.String(), k.ID.String()), policy)
	var lines header
	lines.policy("key", policy)
	if k.WorkspaceLimit.Set {
		shared := policyOf(k.WorkspaceLimit)
		c.workspaceBucket = s.Limiter.Bucket(limiter.WorkspaceBucket(k.Workspace.String()), shared)
		lines.put(", ")
		lines.policy("workspace", shared)
	}
	c.policy = unique.Make(string(lines))
	if k.Quota.Period != "" {
		c.quota = &quota{limiter: s.Limiter, workspace: k.Workspace.String(), Quota: k.Quota}
		c.quota.at(time.Now()) // requests of this period allocate nothing
	}
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
	if p := q.current.Load(); p != nil && !now.Before(p.begin) && now.Before(p.end) { // mutation: a request counts in the period of another
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

// limit takes the tokens that the request costs. It refuses a request that costs none only if
// a rate is 0.
func (s *Server) limit(x *exchange) *failure {
	if x.cost == free {
		x.decision = s.Limiter.Peek(x.now, x.client.bucket, x.client.workspaceBucket, x.quota())
	} else {
		x.cost = oneToken
		x.decision = s.Limiter.Take(x.now, x.client.bucket, x.client.workspaceBucket, x.quota())
	}
	if s.Tracer != nil || x.waitedForLimit() {
		x.endPhase(phaseLimit)
	}
	if x.decision.Allowed {
		return nil
	}
	x.result = cache.Result{} // a page in memory is not served
	problem := rateLimited
	if x.decision.UsedUp() {
		problem = quotaReached
	}
	return &failure{problem: problem, retry: wholeSeconds(x.decision.RetryAfter)}
}

// waitedForLimit reports whether the request may have waited for Redis to take its tokens.
func (x *exchange) waitedForLimit() bool {
	return x.cost == oneToken && (x.decision.Source == limiter.SourceRedis || x.decision.Source == limiter.SourceLocalFallback)
}

// quota returns the workspace's quota for the period in which the request came; nil = it has
// none.
func (x *exchange) quota() *limiter.Counter {
	if x.client.quota == nil {
		return nil
	}
	x.period = x.client.quota.at(x.began)
	return x.period.count
}
