package limiter

import (
	"context"
	"errors"
)

// store is where buckets live: Redis or this process. One suite runs over both.
type store interface {
	// visit carries out the calls in order, each atomic in its own bucket, and
	// fills in their replies. A call whose err is not nil afterwards was carried
	// out or not, nobody knows; errNotHere says that it was not. An error of the
	// visit is one of the place itself. No policy may be a blocked one.
	visit(ctx context.Context, calls []call) error
}

// errNotHere: another Redis node has the bucket.
var errNotHere = errors.New("limiter: the bucket has moved to another node")
