package limiter

import "context"

// store is where buckets live: Redis or this process. One suite runs over both.
type store interface {
	// visit carries out the calls in order, each atomic in its own bucket, and
	// fills in their replies. A call whose err is not nil afterwards was carried
	// out or not, nobody knows; movedTo says that it was not. An error of the
	// visit is one of the place itself. No policy may be a blocked one.
	visit(ctx context.Context, calls []call) error
}

// movedTo: another node of the Redis Cluster has the bucket.
type movedTo struct{ address string }

func (e movedTo) Error() string { return "limiter: the bucket has moved to " + e.address }
