package cache

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"listedge/internal/changefeed"
)

// redisTier is the second tier: pages that other nodes have read, or this one
// before it was restarted. Whatever Redis does, it costs a request no more
// than redisBudget, and nothing while the breaker, or no connection, is open.
//
// The names of its keys have the digest of what is followed: fleets of other
// databases may share the Redis. Until that is known it is empty.
type redisTier struct {
	servers  *servers
	followed *changefeed.Followed
	breaker  *gobreaker.CircuitBreaker[any]

	budget, storeBudget time.Duration

	calls, failures, corrupt, dropped atomic.Uint64

	refused changefeed.Failures // of calls that were made
}

const (
	// redisBudget is the longest a request waits for a page from Redis. Local
	// networks answer in well under a millisecond; Postgres, the other way to
	// get the page, in a few.
	redisBudget = 20 * time.Millisecond
	// redisStoreBudget is for storing, for which nobody waits.
	redisStoreBudget = 250 * time.Millisecond
	redisKeyPrefix   = "page:"
	// redisPage, in bytes, is the largest page that is stored. One of several
	// megabytes takes longer than redisBudget to read, which counts as a failure:
	// a few such pages would open the breaker for all others.
	redisPage = 1 << 20
	// redisEntry, in bytes, is how much of a value is read: more than a page has
	// that is stored, with all that is stored beside it.
	redisEntry = 2 * redisPage
)

func newRedisTier(client redis.UniversalClient, followed *changefeed.Followed) *redisTier {
	return &redisTier{servers: openServers(client), followed: followed, budget: redisBudget, storeBudget: redisStoreBudget, breaker: gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
		Name:        "redis pages",
		MaxRequests: 1,
		Timeout:     250 * time.Millisecond, // then one request probes
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 3 },
	})}
}

// name returns the name of a key in Redis; ok is false while it has none.
func (r *redisTier) name(prefix string, key []byte) (name string, ok bool) {
	digest := r.followed.Digest()
	return prefix + digest + ":" + string(key), digest != ""
}

// get returns the key's page, or nil when Redis has none, cannot be asked in
// time, or has something that is not this key's page. Its age is what the wall
// clocks say: too little, where one is wrong.
func (r *redisTier) get(ctx context.Context, key []byte) (p *Entry) {
	name, ok := r.name(redisKeyPrefix, key)
	if !ok {
		return nil
	}
	r.do(ctx, "read", r.budget, name, func(ctx context.Context, conn *redis.Conn) (err error) {
		now := time.Now()
		p, err = r.page(key, r.value(ctx, conn, name), untold, now)
		return err
	})
	return p
}

// getAged is the same with an age that no clock makes too little. That takes a
// second command, which costs this node a quarter more.
func (r *redisTier) getAged(ctx context.Context, key []byte) (p *Entry) {
	name, ok := r.name(redisKeyPrefix, key)
	if !ok {
		return nil
	}
	r.do(ctx, "read", r.budget, name, func(ctx context.Context, conn *redis.Conn) error {
		var value *redis.StringCmd
		var remaining *redis.DurationCmd
		now := time.Now()
		_, err := conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			// In this order: an entry that is replaced in between looks too old, never too young.
			remaining = pipe.PTTL(ctx, name)
			value = r.value(ctx, pipe, name)
			return nil
		})
		if remaining.Err() == nil { // else it is err
			p, err = r.page(key, value, remaining.Val(), now)
		}
		return err
	})
	return p
}

// value asks for the value of that name, of one that is too long for a page
// only for the beginning; empty = there is none.
func (r *redisTier) value(ctx context.Context, client redis.Cmdable, name string) *redis.StringCmd {
	return client.GetRange(ctx, name, 0, redisEntry)
}

// page makes a page of Redis' answer to who asked at now.
func (r *redisTier) page(key []byte, value *redis.StringCmd, remaining time.Duration, now time.Time) (*Entry, error) {
	bytes, err := value.Bytes()
	switch {
	case err == nil && len(bytes) == 0:
		return nil, nil
	case err == nil && len(bytes) > redisEntry:
		r.corrupt.Add(1)
		return nil, nil
	case err == nil:
	case redis.HasErrorPrefix(err, "WRONGTYPE"): // no failure: Redis answered
		r.corrupt.Add(1)
		return nil, nil
	default:
		return nil, err
	}
	p, err := decode(bytes, key, remaining, now)
	if err != nil {
		r.corrupt.Add(1)
	}
	return p, nil
}

// set keeps the page until life after its proof, unless it is too large.
func (r *redisTier) set(ctx context.Context, key []byte, p *Entry, life time.Duration) {
	remaining := life - time.Since(p.Proof)
	name, ok := r.name(redisKeyPrefix, key)
	if remaining < time.Millisecond || !ok {
		return
	}
	settled := p.size(len(key)) > redisPage
	if settled {
		r.dropped.Add(1)
	} else {
		r.do(ctx, "store", r.storeBudget, name, func(ctx context.Context, conn *redis.Conn) error {
			err := conn.Set(ctx, name, p.encode(key, life), remaining).Err()
			settled = err == nil
			return err
		})
	}
	if settled && p.sequence.Load() > 0 {
		r.release(ctx, key)
	}
}

const (
	claimPrefix = "fill:"
	// claimLife outlasts a usual query; a node that died meanwhile holds the
	// others up no longer than they wait anyway.
	claimLife = 150 * time.Millisecond
)

// claim says whether this node is the one to read the key's page: it is, too,
// when Redis cannot tell.
func (r *redisTier) claim(ctx context.Context, key []byte) bool {
	mine := true
	name, ok := r.name(claimPrefix, key)
	if !ok {
		return mine
	}
	r.do(ctx, "claim", r.budget, name, func(ctx context.Context, conn *redis.Conn) error {
		claimed, err := conn.SetNX(ctx, name, 1, claimLife).Result()
		mine = claimed || err != nil
		return err
	})
	return mine
}

// release gives a claim up.
func (r *redisTier) release(ctx context.Context, key []byte) {
	if name, ok := r.name(claimPrefix, key); ok {
		r.do(ctx, "release", r.storeBudget, name, func(ctx context.Context, conn *redis.Conn) error { return conn.Del(ctx, name).Err() })
	}
}

// probe asks for a sign of life where Redis was left alone long enough: hits
// never would.
func (r *redisTier) probe(ctx context.Context) {
	if r.breaker.State() != gobreaker.StateHalfOpen {
		return
	}
	r.guard(func() error {
		server := r.servers.any()
		if server == nil {
			return errNoneOpen
		}
		return r.on(ctx, server, r.budget, tryRead)
	})
}

// do makes one call, to the server that has the key, within its budget and
// behind the breaker. That the key is elsewhere by now is no failure.
func (r *redisTier) do(ctx context.Context, operation string, budget time.Duration, key string, call func(context.Context, *redis.Conn) error) {
	r.guard(func() error {
		server, err := r.servers.of(ctx, key)
		if err == nil {
			err = r.on(ctx, server, budget, call)
		}
		if err != nil && r.servers.elsewhere(err) {
			return nil
		}
		return r.refused.Note(operation, err)
	})
}

// failure is why pages do not go through Redis, or not both ways; nil if they do.
func (r *redisTier) failure() error {
	return cmp.Or(r.servers.failure(), r.refused.Latest())
}

// on makes one call on an open connection to the server.
func (r *redisTier) on(ctx context.Context, server *connections, budget time.Duration, call func(context.Context, *redis.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	conn, err := server.take(ctx)
	if err != nil {
		return err
	}
	err = errPanic // until it has returned
	defer func() { server.give(conn, err) }()
	err = call(ctx, conn)
	return err
}

// guard runs what may fail behind the breaker.
func (r *redisTier) guard(call func() error) {
	_, err := r.breaker.Execute(func() (any, error) {
		r.calls.Add(1)
		if err := call(); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		return nil, nil
	})
	if err != nil {
		r.failures.Add(1)
	}
}
