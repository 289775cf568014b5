package changefeed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// claimLife is how long a fleet that has no node any more keeps its name.
const claimLife = 15 * time.Second

// Claim records which database the fleet of the identity's region follows. A node that has
// not joined the fleet records it only if nothing else is recorded; else Claim returns what
// the fleet follows. A node that has joined renews the record, and may change it: the
// database of a whole fleet may be replaced.
func Claim(ctx context.Context, client redis.UniversalClient, identity Identity, joined bool) (other string, err error) {
	key, own := keyPrefix+"fleet:"+identity.Region, identity.Digest()+" "+identity.String()
	var recorded *redis.StringCmd
	_, err = client.Pipelined(ctx, func(p redis.Pipeliner) error {
		args := redis.SetArgs{TTL: claimLife}
		if !joined {
			args.Mode = "NX"
		}
		p.SetArgs(ctx, key, own, args)
		recorded = p.Get(ctx, key)
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) { // Nil: something was recorded
		return "", fmt.Errorf("record which database the fleet follows: %w", err)
	}
	digest, name, _ := strings.Cut(recorded.Val(), " ")
	if recorded.Err() != nil || joined || digest == identity.Digest() {
		return "", recorded.Err()
	}
	return name, nil
}
