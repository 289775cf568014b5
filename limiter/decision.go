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
	Remaining int64         // tokens that may be had
	RetryIn   time.Duration // when refused: the time until there may be a token
	ResetIn   time.Duration // the time until there is one token more; 0 when the bucket is full
	FullIn    time.Duration // the time until the bucket is full
}

// show sets all but RetryIn.
func (s *Status) show(of lease.Status) {
	s.Remaining, s.ResetIn, s.FullIn = of.Remaining, micros(of.Next), micros(of.Full)
}

// refuse notes that a bucket has no token for so many microseconds. The decision
// names the bucket with the longer wait.
func (d *Decision) refuse(which Which, retryIn int64) {
	s := &d.Key
	if which == Workspace {
		s = &d.Workspace
	}
	retry := micros(max(1, retryIn))
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

// blockedRetry is the time that a client with a rate of 0 is given: long enough to
// quiet it, short enough that it notices when the rate is raised.
const blockedRetry = time.Hour

func micros(n int64) time.Duration {
	if n > int64(maxMicros) {
		n = int64(maxMicros)
	}
	return time.Duration(n) * time.Microsecond
}

const maxMicros = (1<<63 - 1) / time.Microsecond
