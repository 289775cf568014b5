package limiter

import "time"

// Decision is the answer to one Take.
type Decision struct {
	Allowed    bool
	RetryAfter time.Duration // when refused: the time until there may be a token, never 0
	Key        Level         // zero where there is no such bucket, or no trip was made
	Workspace  Level
	Refused    Which  // the bucket that refused; of two, the one with the longer wait
	Source     Source // who decided
}

// Level is how a bucket stands after the decision: what it was last seen to
// have, what the rate has brought since, and what this node holds of it.
type Level struct {
	Remaining int64         // whole tokens left
	Full      time.Duration // time until the bucket is full
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
