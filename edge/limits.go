package edge

import (
	"bytes"
	"strconv"
	"time"
	"unique"

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

// limit takes a token from the key's bucket and from its workspace's.
func (s *Server) limit(x *exchange) failure {
	x.decision, x.limited = s.limiter.TakeAt(x.now, x.client.bucket, x.client.workspaceBucket), true
	if x.decision.Source == limiter.SourceRedis || x.decision.Source == limiter.SourceLocalFallback || s.timePhases { // which may have waited
		x.endPhase(phaseLimit)
	}
	if x.decision.Allowed {
		return failure{}
	}
	return failure{problem: rateLimited, retry: wholeSeconds(x.decision.RetryAfter)}
}

// returnToken gives the token back, and says whether it did: only if the response
// has cost neither a query nor a call to Redis, not even for the limit itself,
// which a burst below 16 costs each time. Those costs are what a limit is for.
func (s *Server) returnToken(x *exchange) bool {
	if !x.result.Local || x.nextPrefetched || x.decision.Source == limiter.SourceRedis {
		return false
	}
	s.limiter.Return(x.client.bucket, x.client.workspaceBucket)
	return true
}

// addLimits tells how the buckets stand. Where there are many requests they
// share lines that are at most 50 ms old, and so do those that are free:
// working levels out and rendering them costs 0.3 µs.
func (s *Server) addLimits(a *response, x *exchange, free bool) {
	if !x.limited {
		return
	}
	c, stamp := x.client, uint64(0)
	if x.decision.Allowed {
		stamp = s.limiter.Stamp(x.now, c.bucket, c.workspaceBucket)
	}
	if stamp == 0 && !free {
		a.lines = append(a.lines, x.conn.told.of(x)...)
		return
	}
	last := c.shown.Load()
	if last == nil || last.stamp != stamp || stamp == 0 && x.now.Sub(last.at) > shownFor {
		last = &shown{x.now, stamp, bytes.Clone(x.conn.told.of(x))}
		c.shown.Store(last)
	}
	a.lines = append(a.lines, last.lines...)
}

// standing is all that limit lines tell: how a client's buckets stand after a
// decision.
type standing struct {
	policy    unique.Handle[string]
	of        limiter.Which // what first is the level of
	first     level
	also      bool // that of the workspace is told, too
	workspace level
	tightest  level // for clients that know of one bucket only
	burst     int64 // of that bucket
}

func standingOf(now time.Time, c *client, d *limiter.Decision) standing {
	if d.Source == limiter.SourceBlocked { // a rate of 0: how the other bucket stands was not asked
		blocked, burst := level{0, wholeSeconds(d.RetryAfter)}, c.limit
		if d.Refused == limiter.Workspace {
			burst = c.workspaceLimit
		}
		return standing{policy: c.policy, of: d.Refused, first: blocked, tightest: blocked, burst: burst}
	}
	key := levelOf(now, d, limiter.Key, c.bucket)
	st := standing{policy: c.policy, of: limiter.Key, first: key, tightest: key, burst: c.limit}
	if c.workspaceBucket != nil {
		st.also, st.workspace = true, levelOf(now, d, limiter.Workspace, c.workspaceBucket)
		if st.workspace.remaining < key.remaining || d.Refused == limiter.Workspace {
			st.tightest, st.burst = st.workspace, c.workspaceLimit
		}
	}
	return st
}

func (st *standing) append(dst []byte) []byte {
	dst = append(append(append(dst, "RateLimit-Policy: "...), st.policy.Value()...), "\r\nRateLimit: "...)
	dst = appendLevel(dst, st.of.String(), st.first)
	if st.also {
		dst = appendLevel(append(dst, ", "...), "workspace", st.workspace)
	}
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Limit: "...), st.burst, 10)
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Remaining: "...), st.tightest.remaining, 10)
	dst = strconv.AppendInt(append(dst, "\r\nX-RateLimit-Reset: "...), st.tightest.reset, 10)
	return append(dst, crlf...)
}

// told is what a connection told last of a client's limits: buckets that are
// full but for one token, as those of many clients are, stand alike. None stands
// as the zero value does, which has no policy.
type told struct {
	standing standing
	lines    []byte
}

// of returns the lines that tell how the buckets of the exchange's client stand,
// which are good until the next call.
func (t *told) of(x *exchange) []byte {
	if st := standingOf(x.now, x.client, &x.decision); st != t.standing {
		t.standing, t.lines = st, st.append(t.lines[:0])
	}
	return t.lines
}

// level is a bucket as headers show it: whole tokens, and seconds from now
// until it is full, or, when it refused, until there is a token.
type level struct{ remaining, reset int64 }

func levelOf(now time.Time, d *limiter.Decision, which limiter.Which, b *limiter.Bucket) level {
	if d.Refused == which {
		return level{0, wholeSeconds(d.RetryAfter)}
	}
	l := b.LevelAt(now)
	return level{l.Remaining, int64((l.Full + time.Second - 1) / time.Second)}
}

func appendLevel(dst []byte, name string, l level) []byte {
	dst = append(append(append(dst, '"'), name...), `";r=`...)
	dst = strconv.AppendInt(dst, l.remaining, 10)
	return strconv.AppendInt(append(dst, ";t="...), l.reset, 10)
}

// wholeSeconds rounds up, to at least 1: the unit of Retry-After.
func wholeSeconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }
