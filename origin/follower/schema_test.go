package follower_test

import (
	"context"

	"listedge/origin"
	"listedge/origin/follower"
)

// The package that migrates imports this one, so only an external test may import both.
func init() {
	follower.MigrateUp = func(ctx context.Context, url string) (any, error) { return origin.MigrateUp(ctx, url) }
}
