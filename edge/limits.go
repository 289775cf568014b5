package edge

import (
	"strconv"
	"time"

	"listedge/cache"
	"listedge/limiter"
)

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

// addLimits adds the limit headers to a response if the limiter has made a decision.
func (s *Server) addLimits(r *response, x *exchange) {
	if x.cost != notLimited {
		r.lines = appendLimits(r.lines, x.client, x.period, &x.decision)
	}
}

// appendLimits renders the limit headers of a decision. quota is nil if there is none.
func appendLimits(dst []byte, c *client, quota *period, d *limiter.Decision) []byte {
	dst = append(append(dst, "RateLimit-Policy: "...), c.policy.Value()...)
	if quota != nil {
		dst = append(append(dst, ", "...), quota.policy...)
	}
	dst = append(dst, "\r\nRateLimit: "...)
	tightest, burst := &d.Key, c.limit // the bucket that the X-RateLimit headers describe
	switch {
	case d.Source == limiter.SourceBlocked: // a rate of 0: the other buckets have no status
		burst = 0
		if d.Refused == limiter.Workspace {
			tightest = &d.Workspace
		}
		dst = appendStatus(dst, d.Refused.String(), tightest)
	default:
		dst = appendStatus(dst, "key", &d.Key)
		if c.workspaceBucket != nil {
			dst = appendStatus(append(dst, ", "...), "workspace", &d.Workspace)
			if d.Workspace.Remaining < d.Key.Remaining || d.Refused == limiter.Workspace {
				tightest, burst = &d.Workspace, c.workspaceLimit
			}
		}
		if quota != nil {
			dst = appendStatus(append(dst, ", "...), "quota", &d.Quota)
			if d.Quota.Remaining < tightest.Remaining || d.Refused == limiter.Quota {
				tightest, burst = &d.Quota, c.quota.Requests
			}
		}
	}
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Limit: "...), burst, 10)
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Remaining: "...), tightest.Remaining, 10)
	reset := upToSecond(tightest.ResetIn)
	if d.Refused != limiter.Neither {
		reset = wholeSeconds(d.RetryAfter)
	}
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Reset: "...), reset, 10)
	return append(dst, crlf...)
}

// appendStatus renders one bucket: the tokens left, and the seconds until there is
// one more.
func appendStatus(dst []byte, name string, s *limiter.Status) []byte {
	dst = append(append(append(dst, '"'), name...), `";r=`...)
	dst = strconv.AppendInt(dst, s.Remaining, 10)
	return strconv.AppendInt(append(dst, ";t="...), upToSecond(s.ResetIn), 10)
}

// upToSecond rounds up to whole seconds.
func upToSecond(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// wholeSeconds rounds up, to at least 1: the unit of Retry-After.
func wholeSeconds(d time.Duration) int64 { return max(1, upToSecond(d)) }
