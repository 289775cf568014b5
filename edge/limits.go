package edge

import (
	"strconv"
	"time"

	"listedge/limiter"
)

// shown are a client's limit lines, when they were made, and the stamp of the
// levels they show; 0 = only of what a single request was shown.
type shown struct {
	at    time.Time
	stamp uint64
	lines []byte
}

// shownFor is how long a request that costs no token is shown the same levels.
const shownFor = 50 * time.Millisecond

// addLimits tells how the buckets stand. Where there are many requests they
// share lines that are at most 50 ms old, and so do those that are free:
// working levels out and rendering them costs 0.3 µs.
func (s *Server) addLimits(a *answer, x *exchange, free bool) {
	if !x.limited {
		return
	}
	c, stamp := x.client, uint64(0)
	if x.limits.Allowed {
		stamp = s.limiter.Stamp(x.now, c.bucket, c.workspaceBucket)
	}
	if stamp == 0 && !free {
		a.lines = appendLimits(a.lines, c, &x.limits)
		return
	}
	last := c.shown.Load()
	if last == nil || last.stamp != stamp || stamp == 0 && x.now.Sub(last.at) > shownFor {
		last = &shown{x.now, stamp, appendLimits(nil, c, &x.limits)}
		c.shown.Store(last)
	}
	a.lines = append(a.lines, last.lines...)
}

// appendLimits appends the lines that tell of the client's buckets after the
// decision.
func appendLimits(dst []byte, c *client, d *limiter.Decision) []byte {
	dst = append(append(append(dst, "RateLimit-Policy: "...), c.policy.Value()...), "\r\nRateLimit: "...)
	if d.Source == limiter.SourceBlocked { // a rate of 0: how the other bucket stands was not asked
		blocked, burst := level{0, wholeSeconds(d.RetryAfter)}, c.limit
		if d.Refused == limiter.Workspace {
			burst = c.workspaceLimit
		}
		return appendTightest(appendLevel(dst, d.Refused.String(), blocked), blocked, burst)
	}
	key := levelOf(d, limiter.Key, c.bucket)
	dst = appendLevel(dst, "key", key)
	tightest, burst := key, c.limit
	if c.workspaceBucket != nil {
		workspace := levelOf(d, limiter.Workspace, c.workspaceBucket)
		dst = appendLevel(append(dst, ", "...), "workspace", workspace)
		if workspace.remaining < key.remaining || d.Refused == limiter.Workspace {
			tightest, burst = workspace, c.workspaceLimit
		}
	}
	return appendTightest(dst, tightest, burst)
}

// level is a bucket as headers show it: whole tokens, and seconds from now
// until it is full, or, when it refused, until there is a token.
type level struct{ remaining, reset int64 }

func levelOf(d *limiter.Decision, which limiter.Which, b *limiter.Bucket) level {
	if d.Refused == which {
		return level{0, wholeSeconds(d.RetryAfter)}
	}
	l := b.Level()
	return level{l.Remaining, int64((l.Full + time.Second - 1) / time.Second)}
}

func appendLevel(dst []byte, name string, l level) []byte {
	dst = append(append(append(dst, '"'), name...), `";r=`...)
	dst = strconv.AppendInt(dst, l.remaining, 10)
	return strconv.AppendInt(append(dst, ";t="...), l.reset, 10)
}

// appendTightest ends the line of levels and adds those for clients that know
// of one bucket only.
func appendTightest(dst []byte, l level, burst int64) []byte {
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Limit: "...), burst, 10)
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Remaining: "...), l.remaining, 10)
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Reset: "...), l.reset, 10)
	return append(dst, crlf...)
}

// wholeSeconds rounds up, to at least 1: the unit of Retry-After.
func wholeSeconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }
