package limiter

import "time"

// Decision is the answer to one TakeAt. (Four fields travel in registers.)
type Decision struct {
	Allowed    bool
	Refused    Which         // the bucket that refused; of two, the one with the longer wait
	Source     Source        // who decided
	RetryAfter time.Duration // when refused: the time until there may be a token, never 0
}

// refuse notes that one of the buckets has no token for wait microseconds.
func (d *Decision) refuse(which Which, wait int64) {
	if retry := micros(max(1, wait)); retry > d.RetryAfter {
		d.RetryAfter, d.Refused = retry, which
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
	SourceBlocked                     // rate 0: nobody was asked
	SourceMemory                      // the in-process store: no Redis is configured
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
