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
type Status = lease.Status

// add adds what became of the request at one bucket.
func (d *Decision) add(which Which, s Status) {
	if which == Key {
		d.Key = s
	} else {
		d.Workspace = s
	}
	if s.RetryIn > d.RetryAfter {
		d.Allowed, d.RetryAfter, d.Refused = false, s.RetryIn, which
	}
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
