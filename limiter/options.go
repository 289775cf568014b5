package limiter

import (
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/boottime"
)

// Options of a Limiter. The zero value is a working single node.
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
