package edge

import (
	"strconv"
	"time"

	"listedge/limiter"
)

// addLimits adds the limit headers of an answer to a client that was limited.
func (s *Server) addLimits(a *answer, x *exchange) {
	if x.limited {
		a.lines = appendLimits(a.lines, x.client, &x.limits)
	}
}

// appendLimits renders the limit headers of a decision.
func appendLimits(dst []byte, c *client, d *limiter.Decision) []byte {
	dst = append(append(append(dst, "RateLimit-Policy: "...), c.policy.Value()...), "\r\nRateLimit: "...)
	tightest, burst := &d.Key, c.limit // for clients that know of one bucket only
	switch {
	case d.Source == limiter.SourceBlocked: // a rate of 0: the other bucket was not looked at
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
