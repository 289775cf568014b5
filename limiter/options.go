package limiter

import (
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/boottime"
	"listedge/limiter/lease"
)

// Policy is the rate and burst of a bucket.
type Policy = lease.Policy

// NewPolicy makes a policy of a rate in tokens a second and a burst in tokens.
func NewPolicy(rate float64, burst int64) (Policy, error) { return lease.NewPolicy(rate, burst) }

// IsWholeRate reports whether a rate is a whole number of micro-tokens a second.
// NewPolicy rounds other rates down.
func IsWholeRate(rate float64) bool { return lease.IsWhole(rate) }

// Options are the settings of a Limiter. The zero value is a working single node.
type Options struct {
	// Redis is nil for a single node. The client may lead to a single server, Sentinel
	// or Cluster. It should be used by the limiter only, with ContextTimeoutEnabled. The
	// limiter does not close it.
	Redis  redis.UniversalClient
	Prefix string // begins all keys in Redis; limiters of different prefixes share nothing

	FailureMode FailureMode // empty = FailLocal
	NodeID      string      // unique in the fleet, and the same after a restart; empty = random

	Budget time.Duration   // the longest a Take waits for a Redis that is not slow; 0 = DefaultBudget
	Clock  *boottime.Clock // of this node; nil = a new one (the script uses Redis' own clock)
}

// FailureMode is how requests are decided while Redis is unreachable and no leased
// token is left.
type FailureMode string

const (
	FailLocal FailureMode = "local" // this node's part of the bucket decides
	FailAllow FailureMode = "allow" // all are admitted; Redis debits them later
	FailDeny  FailureMode = "deny"  // all are refused
)

// DefaultBudget is how long a request waits for Redis: several round trips within a
// data centre. If two round trips take longer, a request waits for two, but never more
// than 125 ms.
const DefaultBudget = 10 * time.Millisecond
