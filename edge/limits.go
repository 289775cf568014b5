package edge

import (
	"strconv"
	"time"

	"listedge/cache"
	"listedge/limiter"
)

// limit takes a token from the key's bucket and from its workspace's.
func (s *Server) limit(x *exchange) failure {
	x.decision, x.limited = s.limiter.Take(x.now, x.client.bucket, x.client.workspaceBucket), true
	if x.decision.Source == limiter.SourceRedis || x.decision.Source == limiter.SourceLocalFallback || s.timePhases { // the decision may have waited for Redis
		x.endPhase(phaseLimit)
	}
	if x.decision.Allowed {
		return failure{}
	}
	x.result = cache.Result{} // a page that revalidate found is not served
	return failure{problem: rateLimited, retry: wholeSeconds(x.decision.RetryAfter)}
}

// returnToken returns the tokens of a request to their buckets, and reports whether it did.
// It does so only if the response has cost neither a query nor a call to Redis, because a limit
// exists to bound these costs. The limit's own call to Redis counts, too: with a burst
// below 16 each request makes one.
func (s *Server) returnToken(x *exchange) bool {
	if !x.result.Local || x.nextPrefetched || x.decision.Source == limiter.SourceRedis {
		return false
	}
	s.limiter.Return(x.client.bucket, x.client.workspaceBucket)
	x.decision = s.limiter.Peek(x.now, x.client.bucket, x.client.workspaceBucket)
	return true
}

// addLimits adds the limit headers to a response if the limiter has made a decision.
func (s *Server) addLimits(r *response, x *exchange) {
	if x.limited {
		r.lines = appendLimits(r.lines, x.client, &x.decision)
	}
}

// appendLimits renders the limit headers of a decision.
func appendLimits(dst []byte, c *client, d *limiter.Decision) []byte {
	dst = append(append(append(dst, "RateLimit-Policy: "...), c.policy.Value()...), "\r\nRateLimit: "...)
	tightest, burst := &d.Key, c.limit // the bucket that the X-RateLimit headers describe
	switch {
	case d.Source == limiter.SourceBlocked: // a rate of 0: the other bucket has no status
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
	}
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Limit: "...), burst, 10)
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Remaining: "...), tightest.Remaining, 10)
	full := upToSecond(tightest.FullIn)
	if tightest.RetryIn > 0 {
		full = upToSecond(tightest.RetryIn)
	}
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Reset: "...), full, 10)
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
