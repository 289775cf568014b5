package edge

import (
	"strconv"
	"time"

	"listedge/cache"
	"listedge/limiter"
)

// limit takes a token from the key's bucket, from its workspace's and from the quota.
func (s *Server) limit(x *exchange) failure {
	x.decision, x.limited = s.limiter.Take(x.now, x.client.bucket, x.client.workspaceBucket, x.quotaBucket()), true
	if x.decision.Source == limiter.SourceRedis || x.decision.Source == limiter.SourceLocalFallback || s.timePhases { // the decision may have waited for Redis
		x.endPhase(phaseLimit)
	}
	if x.decision.Allowed {
		return failure{}
	}
	x.result = cache.Result{} // a page that revalidate found is not served
	problem := rateLimited
	if x.decision.UsedUp() {
		problem = quotaReached
	}
	return failure{problem: problem, retry: wholeSeconds(x.decision.RetryAfter)}
}

// quotaBucket returns the bucket of the workspace's quota for the period in which the
// request came; nil = there is no quota. All steps of a request use the same one.
func (x *exchange) quotaBucket() *limiter.Bucket {
	if x.client.quota == nil {
		return nil
	}
	if x.period == nil {
		x.period = x.client.quota.at(x.began)
	}
	return x.period.bucket
}

// peek returns the state of the limits for a response that costs no token.
func (s *Server) peek(x *exchange) limiter.Decision {
	return s.limiter.Peek(x.now, x.client.bucket, x.client.workspaceBucket, x.quotaBucket())
}

// returnToken returns the tokens of a request to their buckets, and reports whether it did.
// It does so only if the response has cost neither a query nor a call to Redis, because a limit
// exists to bound these costs. The limit's own call to Redis counts, too: with a burst
// below 16 each request makes one.
func (s *Server) returnToken(x *exchange) bool {
	if !x.result.Local || x.nextPrefetched || x.decision.Source == limiter.SourceRedis {
		return false
	}
	s.limiter.Return(x.client.bucket, x.client.workspaceBucket, x.quotaBucket())
	x.decision = s.peek(x)
	return true
}

// addLimits adds the limit headers to a response if the limiter has made a decision.
func (s *Server) addLimits(r *response, x *exchange) {
	if x.limited {
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
		if d.Refused == limiter.Workspace {
			tightest, burst = &d.Workspace, c.workspaceLimit
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
