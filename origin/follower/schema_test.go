package follower_test

import (
	"context"

	"listedge/origin/admin"
	"listedge/origin/follower"
)

// The package that migrates imports this one, so only an external test may import both.
func init() {
	follower.MigrateUp = func(ctx context.Context, url string) (any, error) { return admin.MigrateUp(ctx, url) }
}
