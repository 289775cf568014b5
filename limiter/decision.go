package limiter

import (
	"time"

	"listedge/limiter/lease"
)

// Decision is the answer to one Take: all that a response needs of it.
type Decision struct {
	Allowed    bool
	Refused    Which         // the bucket that refused; of two, the one with the longer wait
	Source     Source        // who decided
	RetryAfter time.Duration // when refused: the time until there may be a token, never 0
	Key        Status
	Workspace  Status // zero where there is no such bucket
}

// Status is the state of one bucket after a decision.
type Status struct {
	Allowed   bool
	Remaining int64         // tokens that may be had; never more than that
	RetryIn   time.Duration // when refused: the time until there may be a token
	ResetIn   time.Duration // the time until there is one token more; 0 when the bucket is full
	FullIn    time.Duration // the time until the bucket is full
}

// show sets what headers show of a bucket.
func (s *Status) show(of lease.Status) {
	s.Remaining, s.ResetIn, s.FullIn = of.Remaining, micros(of.Next), micros(of.Full)
}

// refuse notes that one of the buckets has no token for wait microseconds.
func (d *Decision) refuse(which Which, wait int64) {
	s := &d.Key
	if which == Workspace {
		s = &d.Workspace
	}
	retry := micros(max(1, wait))
	*s = Status{RetryIn: retry, ResetIn: retry, FullIn: max(s.FullIn, retry)}
	d.Allowed = false
	if retry > d.RetryAfter {
		d.RetryAfter, d.Refused = retry, which
	}
}

// block refuses a request whose bucket has rate 0.
func (d *Decision) block(which Which) {
	d.Source = SourceBlocked
	d.refuse(which, blockedRetry.Microseconds())
}

// Which names a bucket of a request.
type Which uint8

const (
	Neither Which = iota
	Key
	Workspace
)

func (w Which) String() string { return [...]string{"neither", "key", "workspace"}[w] }

// Source tells where a decision was made.
type Source uint8

const (
	SourceUnlimited     Source = iota // there is no bucket
	SourceBlocked                     // rate 0
	SourceMemory                      // the bucket itself: no Redis is configured
	SourceRedis                       // Redis, which the request waited for
	SourceLease                       // tokens leased from Redis, or its word that there are none yet
	SourceLocalFallback               // this node alone: Redis is away or missed the budget
	sources
)

func (s Source) String() string {
	return [...]string{"unlimited", "blocked", "memory", "redis", "lease", "local-fallback"}[s]
}

// blockedRetry answers a rate of 0, where no time is right: long enough to quiet
// a client, short enough that it notices when the rate is raised.
const blockedRetry = time.Hour

func micros(n int64) time.Duration {
	if n > int64(maxMicros) {
		n = int64(maxMicros)
	}
	return time.Duration(n) * time.Microsecond
}

const maxMicros = (1<<63 - 1) / time.Microsecond
