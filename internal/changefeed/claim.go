package changefeed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// claimLife is how long Redis keeps the record of a fleet after its last node has stopped.
const claimLife = 15 * time.Second

// Claim is a node's claim that the fleet of its region follows the node's database. Redis
// has the record of which one the fleet follows. Not safe for use by several goroutines.
type Claim struct {
	client   redis.UniversalClient
	followed *Followed

	joined string    // the digest of the database with which the node has joined; empty = it has not
	other  string    // the database that the fleet follows and this node does not; empty = none
	vacant time.Time // since when a refused node has found no record; zero = it has found one
}

// NewClaim makes the claim of a node that has not joined a fleet.
func NewClaim(client redis.UniversalClient, followed *Followed) *Claim {
	return &Claim{client: client, followed: followed}
}

func (c *Claim) key() string { return c.followed.logPrefix() + "fleet" }

// Renew joins the fleet, or renews its record, and returns the other database that the fleet
// follows; empty = the node has joined, or Redis has not answered yet. While Redis does not
// answer, its last answer holds.
//
// A node joins if no other database is recorded. A node that was refused waits for claimLife
// without a record: a Redis that restarts empty has none either, until the fleet renews it. A
// node that has joined replaces the record if its own database was replaced, because that of a
// whole fleet may be. Otherwise it is refused: the record is of a fleet that came after it.
func (c *Claim) Renew(ctx context.Context) (other string) {
	identity, known := c.followed.Identity()
	if !known {
		return c.other
	}
	args := redis.SetArgs{TTL: claimLife, Mode: "NX"}
	replaced := c.joined != "" && c.joined != identity.Digest()
	switch recorded, err := c.Other(ctx); {
	case errors.Is(err, redis.Nil) && c.other != "":
		if c.vacant.IsZero() {
			c.vacant = time.Now()
		}
		if time.Since(c.vacant) < claimLife {
			return c.other
		}
	case errors.Is(err, redis.Nil):
	case redis.HasErrorPrefix(errors.Unwrap(err), "WRONGTYPE"): // something damaged the record, so it says nothing
		args.Mode = ""
	case err != nil:
		c.vacant = time.Time{}
		return c.other
	case recorded == "" || replaced:
		args.Mode = ""
	default:
		c.joined, c.other, c.vacant = "", recorded, time.Time{}
		return c.other
	}
	if c.client.SetArgs(ctx, c.key(), identity.Digest()+" "+identity.String(), args).Err() == nil { // otherwise the next call sees why
		c.joined, c.other, c.vacant = identity.Digest(), "", time.Time{}
	}
	return c.other
}

// Other returns the other database that is recorded; empty = the node's own is.
// Errors: redis.Nil = none is recorded.
func (c *Claim) Other(ctx context.Context) (name string, err error) {
	recorded, err := c.client.Get(ctx, c.key()).Result()
	if err != nil {
		return "", fmt.Errorf("read which database the fleet follows: %w", err)
	}
	digest, name, _ := strings.Cut(recorded, " ")
	if digest == c.followed.Digest() {
		return "", nil
	}
	return name, nil
}
